"""What runs first in each process of a local job: `python -m flexmarl.local.child`."""

import sys

from flexmarl.local.serving import imported
from flexmarl.local.system import tie_to_parent


def main() -> None:
    """Arguments: name of the process, module whose `main()` it is, pid of the supervisor."""
    name, module, supervisor = sys.argv[1:]
    tie_to_parent(int(supervisor), name)
    sys.argv = [name]
    imported(module)()


if __name__ == "__main__":
    main()
