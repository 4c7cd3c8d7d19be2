"""Random schedules over the operator and the agents as they are, under virtual time, judged by a referee of its own."""
