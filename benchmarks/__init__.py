"""Speed and size, as ratios against a floor or a peer measured in the same run. Never part of the tests."""
