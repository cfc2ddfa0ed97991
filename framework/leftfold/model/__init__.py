"""What users declare, as values: messages, deciders, processes, reactions, views and the App.

Pure Python and pydantic: no loop, no port and no technology lives here.
"""
