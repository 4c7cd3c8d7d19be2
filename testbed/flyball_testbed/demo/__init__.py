"""`flyball demo`: a real control plane, an hour of a real trace, a power cap stepped down and up, and a referee.

The trace is compressed in time: jobs and the gaps between them are shorter by the compression, while physics stays real
(seconds an iteration, watts). Times and energies are reported in simulated seconds and joules, which are real ones times
the compression; watts are watts. What a restart costs is not compressed: a second of it counts as a minute or two.
"""
