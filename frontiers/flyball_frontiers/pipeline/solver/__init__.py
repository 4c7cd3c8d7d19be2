"""The cheapest plan of one iteration time: the relaxation and its flow, solved, rounded to real clocks, and proven."""
