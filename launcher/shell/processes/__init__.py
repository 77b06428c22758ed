"""Training processes: started, watched and stopped, with nothing left behind. The door is processes.py.

An agent has up to two parents for them, processes of one thread each (forkserver.py): a warm one, which has imported
torch and forks, and a plain one, which executes. Parents reap and kill what their processes leave, and outlive their
agent by no more than that.
"""
