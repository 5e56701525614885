module flexmarl.io/tests/cluster/pause

go 1.22
