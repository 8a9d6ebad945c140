"""Downloads data sets: where files come from, fetching, unpacking, installing below a data root,
verifying.
"""
