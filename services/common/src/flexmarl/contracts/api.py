"""What a MARLJob's API is called; apart from the models, which take long to load."""

from typing import Final

GROUP = "flexmarl.io"
VERSION = "v1alpha1"
API_VERSION: Final = "flexmarl.io/v1alpha1"
