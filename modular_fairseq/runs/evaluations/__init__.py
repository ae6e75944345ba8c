"""What a run can be worth: one evaluation a file."""
