#!/usr/bin/env node
/*
 * Launcher of the `sluice` command, in plain JavaScript that old versions of Node can parse. The rest of the tool is TypeScript
 * and needs Node 24. If an older Node runs this file, the launcher starts the Node that this project has as a dependency.
 */
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const NODE_MAJOR_MIN = 24
const [major = 0] = process.versions.node.split('.').map(Number)

if (major >= NODE_MAJOR_MIN) await run().catch(reportMissingPackage)
else runWith(ownNode())

async function run() {
  const { main } = await import('./cli.ts')
  process.exitCode = await main(process.argv.slice(2))
}

/** Reports a missing dependency. After an incomplete `npm ci` the import fails before any command can run. */
function reportMissingPackage(error) {
  if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error
  process.stderr.write('sluice cannot start: a dependency is not installed. Run: npm ci\n')
  process.exit(2)
}

function ownNode() {
  let found
  try {
    found = join(dirname(createRequire(import.meta.url).resolve('node/package.json')), 'bin', 'node')
  } catch {
    // No other Node is installed. The code below reports this.
  }
  if (found && existsSync(found)) return found
  process.stderr.write(
    `sluice needs Node ${NODE_MAJOR_MIN} or later; this is ${process.version}, and the project's own Node is not installed. Run: npm ci\n`,
  )
  process.exit(2)
}

/** Runs this script in another Node with the same streams; forwards signals, the exit code and the final signal. */
function runWith(node) {
  const script = fileURLToPath(import.meta.url)
  const child = spawn(node, [script, ...process.argv.slice(2)], { stdio: 'inherit' })
  // A terminal sends Ctrl-C to both processes. The launcher ignores SIGINT, waits for the end of the child, and exits in the same way.
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
