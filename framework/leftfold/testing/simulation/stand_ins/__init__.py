"""What stands for modules of the standard library where code is simulated: threads, sockets and event loops."""
