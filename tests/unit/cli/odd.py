"""Lines that no orchestrator of ours writes, but a damaged or foreign file may hold."""

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)
ODD_LINES = st.fixed_dictionaries(
    {"step": st.integers(-3, 10**6) | JSON},
    optional={
        key: JSON | st.dictionaries(st.sampled_from(["solver", "step", "rollout", "prompt"]), JSON)
        for key in ("agents", "policies", "seconds", "tokens", "time", "turns", "task", "outcome")
    },
)
