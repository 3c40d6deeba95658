"""Takes memory until somebody ends it, and touches every page of it."""

kept = []
while True:
    kept.append(bytearray(8 << 20))
    print(f"{len(kept) * 8} MiB", flush=True)
