#!/usr/bin/env node
/*
 * The `sluice` command. Plain JavaScript that old versions of Node understand: the rest is TypeScript, which only the Node
 * this project brings along is sure to run. Where the Node that runs this is too old, that one is started instead.
 */
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const NODE_MAJOR_MIN = 24
const [major = 0] = process.versions.node.split('.').map(Number)

if (major >= NODE_MAJOR_MIN) await import('./cli.ts').catch(sayIncomplete)
else runWith(ownNode())

/** What an `npm ci` that has not ended leaves out is missing before a command can say so itself. */
function sayIncomplete(error) {
  if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error
  process.stderr.write('sluice cannot start: a package of the project is missing. Run: npm ci\n')
  process.exit(2)
}

/** The Node of this project's dependencies. */
function ownNode() {
  let found
  try {
    found = join(dirname(createRequire(import.meta.url).resolve('node/package.json')), 'bin', 'node')
  } catch {
    // Not installed: said below.
  }
  if (found && existsSync(found)) return found
  process.stderr.write(
    `sluice needs Node ${NODE_MAJOR_MIN}; this is ${process.version}, and the project's own is missing. Run: npm ci\n`,
  )
  process.exit(2)
}

/** Becomes that process as far as anybody can tell: its streams, its signals, its end. */
function runWith(node) {
  const script = fileURLToPath(import.meta.url)
  const child = spawn(node, [script, ...process.argv.slice(2)], { stdio: 'inherit' })
  // A terminal sends Ctrl-C to both; this one waits for how the other ends.
  process.on('SIGINT', () => {})
  for (const signal of ['SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal))
  child.on('error', (error) => {
    process.stderr.write(`sluice cannot start ${node}: ${error.message}\n`)
    process.exit(2)
  })
  child.on('exit', (code, signal) => {
    if (signal === null) process.exit(code ?? 1)
    process.removeAllListeners(signal)
    process.kill(process.pid, signal)
  })
}
