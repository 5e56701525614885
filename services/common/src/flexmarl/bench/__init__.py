"""`flexmarl bench`: the services measured against plain code, alternately, in one run."""
