"""What went wrong first in a job, from all that its processes left behind."""
