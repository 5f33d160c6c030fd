"""The queue: jobs in Redis sorted sets, claimed by capacity, fenced by tokens. Depends on nothing above it."""
