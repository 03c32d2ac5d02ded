# Everyday commands; `just` lists them.

# Everything that CI checks.
check: fmt lint test docs

fmt:
    cargo fmt --check

lint:
    cargo clippy --locked --all-targets --no-default-features -- -D warnings
    cargo clippy --locked --all-targets -- -D warnings

test:
    cargo test --locked

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

# Write the golden files again; read the difference as prose before you commit it.
golden:
    UPDATE_GOLDEN=1 INSTA_UPDATE=always cargo test --locked

deny:
    cargo deny --all-features --config .cargo/deny.toml check

bench:
    cargo bench --locked --bench plan

# What CI runs, in the order in which CI runs it.
ci:
    bash .ci/run
