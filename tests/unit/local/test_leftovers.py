import pytest

from flexmarl.local.leftovers import uid_of


@pytest.mark.parametrize(
    ("key", "uid"),
    [
        ("{l12}:state", "l12"),
        ("{default/team/l12}:stream:solver", "l12"),
        ("{l12}", ""),
        ("l12}:state", ""),
        ("{l12:state", ""),
        ("l12", ""),
        ("x{l12}:state", ""),
        ("{}:state", ""),
        ("", ""),
    ],
)
def test_a_key_belongs_to_the_job_that_its_tag_names(key: str, uid: str) -> None:
    assert uid_of(key) == uid
