# batchd on SQLite and a folder: everything it keeps is in /data. With PostgreSQL and a bucket it writes to no folder
# (deploy/compose.yaml, deploy/helm).
#
#   docker build -t batchd .
#   docker run -p 127.0.0.1:8080:8080 -v batchd-data:/data batchd serve --upstream http://host.docker.internal:11434/v1

FROM node:24.21.0-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# No install script is needed here: the image has Node.js, and better-sqlite3 brings its binary.
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json ./
COPY src ./src
COPY scripts ./scripts
RUN npm run build && npm prune --omit=dev --ignore-scripts

FROM node:24.21.0-slim
ENV NODE_ENV=production \
    BATCHD_HOST=0.0.0.0 \
    BATCHD_PORT=8080 \
    BATCHD_DATA_DIR=/data
WORKDIR /app
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/dist ./dist
COPY migrations ./migrations
COPY package.json openapi.yaml LICENSE ./
# A new volume takes its owner from this folder. The user is `node`, by number: Kubernetes cannot look a name up.
RUN mkdir /data && chown node:node /data
USER 1000:1000
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["node", "-e", "fetch('http://127.0.0.1:' + process.env.BATCHD_PORT + '/health').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# No shell in between: SIGTERM reaches the server, which then finishes what is in flight.
# That may take 20 s (engine.drain_grace_seconds): stop with `docker stop -t 30`.
ENTRYPOINT ["node", "--max-semi-space-size=16", "dist/main.js"]
CMD ["serve"]
