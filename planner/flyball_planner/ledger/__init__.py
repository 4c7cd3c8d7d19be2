"""What is given out so far while a plan is made: the jobs' options, the nodes' free slots and the caps' watts."""
