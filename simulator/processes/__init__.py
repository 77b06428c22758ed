"""Run the containers of pods as processes of this machine, as a kubelet would run them."""
