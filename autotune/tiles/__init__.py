"""What an instance of the template does with memory, thread by thread: a model, its counts, a page."""
