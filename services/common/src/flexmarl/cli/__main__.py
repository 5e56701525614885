"""`python -m flexmarl.cli` is `flexmarl`."""

from flexmarl.cli import main

main()
