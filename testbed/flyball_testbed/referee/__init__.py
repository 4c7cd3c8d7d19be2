"""The referee: reads the simulated hardware itself, and checks every cap that is reported as enforced.

It shares no code with the operator, the agent or the simulated driver. It knows the hardware file by its definition
(docs/simulated-gpu.md) and the PowerCap by its public API, read with plain HTTP GETs.

When a sample is held to a cap
------------------------------
A sample is the state of every GPU at one moment; its *limits* are, for each GPU, the larger of the requested and the
enforced limit. Let `before` be the last answer of the API received before the sample began, and `after` the first
answer whose request was sent after the sample ended (and any that was under way meanwhile: the rules for `after`
apply to it too). The sample is judged against a cap where

1. `before` has Enforced=True: the claim was public when the sample was taken; and
2. `after` has Enforced=True still, or the cap has been lowered in between. A claim withdrawn in between for any other
   reason was withdrawn at an unknown instant, before or after the sample: such samples are not judged but counted,
   as `unjudged_seconds` (at most one period of the polling for each withdrawal).

The bound is `status.effectiveWatts` of `before`. While the cap is being lowered the old bound holds for as long as it is
still reported as enforced. Where the cap has been raised, the raised watts are the bound from the moment at which its
owner asked for them: between answers that differ, and where `spec.watts` is above the watts of a status that does not
speak of that generation yet. Hard caps bound limits and true watts, Expected ones true watts.
"""
