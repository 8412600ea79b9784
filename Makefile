# The commands of a developer's day; each is one script of tools/ or one program of the build. docs/development.md explains.
#   make quickstart [TEXT=path]   make install PREFIX=/usr/local   Torch_DIR=… or CMAKE_PREFIX_PATH=… takes an existing libtorch
MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local

.PHONY: all quickstart telemetry-demo test test-fast test-asan test-tsan bench format lint lint-changed install image clean
all:
	@tools/bootstrap build
	@tools/build release

quickstart:
	@tools/quickstart

telemetry-demo:
	@tools/telemetry_demo

test:
	@tools/test

test-fast:
	@tools/bootstrap build
	@tools/build release
	@ctest --test-dir build/release --output-on-failure --no-tests=error --label-regex unit --parallel $$(nproc)

test-asan:
	@tools/test_sanitized asan

test-tsan:
	@tools/test_sanitized tsan

bench:
	@bench/run

format:
	@tools/bootstrap lint
	@tools/format

lint:
	@tools/bootstrap build lint
	@tools/lint

lint-changed:
	@tools/bootstrap build lint
	@tools/lint --changed

install:
	@tools/bootstrap build
	@tools/build release pharos
	@cmake --install build/release --prefix "$(PREFIX)"

# The image that jobs run in: pharos+latest.sqsh of docker/Dockerfile, for GPUs; IMAGE=cpu: pharos-cpu+latest.sqsh of Debian packages.
IMAGE ?= gpu
image:
	@tools/bootstrap build
	@tools/build release pharos
	@build/release/pharos image build $(if $(filter cpu,$(IMAGE)),--name pharos-cpu --cpu,--name pharos)

clean:
	rm -rf build
