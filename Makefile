# Everything one does from a checkout. It needs make and a Python of at least 3.11; the rest is private to .venv.
# Rule: a target sets up what it needs by itself, touches nothing outside this directory, and asks nothing.

export PATH := $(if $(PATH),$(PATH),/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
unexport PYTHONHOME PYTHONPATH PYTHONSTARTUP VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

setup: ## build the private environment .venv (once, and again when the lock file changes)
	@sh scripts/setup.sh

demo: setup ## a small shop, live: failures, retries, a dead letter
	@.venv/bin/carom demo

test: setup ## run every test and hold the coverage
	@sh scripts/test.sh

check: setup ## lint, types, the directions of the imports, the rules of the house
	@sh scripts/check.sh

bench: setup ## measure beside the peers, on a private RabbitMQ; one JSON object a line
	@.venv/bin/python -m bench $(or $(BENCH),all) --json

lock: ## pin the newest versions of everything into requirements/*.lock (needs uv)
	@sh scripts/lock.sh

clean: ## remove what the other targets made
	@rm -rf .venv .venv-bench build dist .coverage .coverage.* .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@find bench examples scripts src tests -name __pycache__ -type d -prune -exec rm -rf {} +
