time python3 -W ignore tests/kernel/ground_truth.py --backend legacy --packets 200 --seed 11 --fragments
time python3 -W ignore tests/kernel/ground_truth.py --backend nft --packets 150 --seed 12
time python3 -W ignore tests/kernel/ground_truth.py --backend nftables --packets 150 --seed 13
