"""Where the job stands, as the store keeps it."""

from flexmarl.orchestrator.position import Position, fall_back


def test_falling_back_forgets_what_was_dropped_in_the_store_too() -> None:
    position = Position(3, 0.0, refills={"refills.3": '[[3, 1, [["t", {}]]]]', "refills.4": "[]"})
    fields = fall_back(position).fields(incarnation=2)
    assert (fields["refills.3"], fields["refills.4"]) == ("[]", "[]")
    assert (fields["step"], fields["discard"]) == ("0", "yes")
