import { type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'

const MAIN = fileURLToPath(new URL('./inside/main.ts', import.meta.url))
const CODE = ['./inside/', '../limits.ts', '../../../package.json'].map((path) =>
  fileURLToPath(new URL(path, import.meta.url)),
)

export type ConfinedChild = ChildProcessByStdio<Writable, Readable, Readable>

/**
 * Starts the confined process, in which the interpreters run. Code that escapes from WebAssembly finds no variable of the service and can
 * read only the files named here. The process cannot write files, start processes or call `eval`.
 *
 * The process ends when its standard input closes, so it does not outlive the service.
 *
 * @param readable Files and directories that the process may read.
 */
export function spawnConfined(args: readonly string[], readable: readonly string[]): ConfinedChild {
  return spawn(process.execPath, [...confine([...CODE, ...readable]), MAIN, ...args], {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: {},
    windowsHide: true,
  })
}

export function confine(readable: readonly string[]): string[] {
  const files = readable.map((path) => `--allow-fs-read=${path}`)
  const language = ['--disallow-code-generation-from-strings', '--disable-proto=delete']
  return ['--permission', '--allow-worker', ...files, ...language, '--no-warnings']
}

export function collectErrors(child: ConfinedChild): () => string {
  let text = ''
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    text = (text + chunk).slice(-4_096)
  })
  return () => text.trim()
}
