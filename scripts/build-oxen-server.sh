#!/bin/sh
# Builds a real Oxen server for `test/locations/oxen.test.ts`. It needs cargo, clang, libclang and cmake, and more than an
# hour on two processors: the build bundles RocksDB and DuckDB. CI does not run it.
#
#   scripts/build-oxen-server.sh
#   SYNC_DIR=/tmp/oxen-data node_modules/.cache/batchd/oxen/bin/oxen-server start -p 3001
#   BATCHD_TEST_OXEN_URL=http://127.0.0.1:3001 npx vitest run test/locations/oxen.test.ts
#
# A package of it fetches swagger-ui from GitHub as it is built; SWAGGER_UI_DOWNLOAD_URL=file:///… names a copy.
set -eu
cd "$(dirname "$0")/.."
# Versions from 0.53.3 on need a compiler newer than Rust 1.95.
exec cargo install oxen-server --version 0.53.0 --locked --root node_modules/.cache/batchd/oxen
