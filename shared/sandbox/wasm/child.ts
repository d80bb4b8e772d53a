import { type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'

const MAIN = fileURLToPath(new URL('./inside/main.ts', import.meta.url))
/** Its code, and what that imports from outside. */
const CODE = ['./inside/', '../limits.ts', '../../../package.json'].map((path) =>
  fileURLToPath(new URL(path, import.meta.url)),
)

/** A confined process, with frames on its standard input and output. */
export type ConfinedChild = ChildProcessByStdio<Writable, Readable, Readable>

/**
 * Starts the process around the interpreters: should code ever get out of WebAssembly, it finds no variable of the
 * service, no file but those named here, no way to write one or to start a process, and no `eval`.
 *
 * It ends when its standard input closes: with this process, however that ends.
 *
 * @param readable Files and directories that it may read.
 */
export function spawnConfined(args: readonly string[], readable: readonly string[]): ConfinedChild {
  return spawn(process.execPath, [...confine([...CODE, ...readable]), MAIN, ...args], {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: {},
    windowsHide: true,
  })
}

/** Node's options for a process that may read so many paths and otherwise compute. */
export function confine(readable: readonly string[]): string[] {
  const files = readable.map((path) => `--allow-fs-read=${path}`)
  const language = ['--disallow-code-generation-from-strings', '--disable-proto=delete']
  return ['--permission', '--allow-worker', ...files, ...language, '--no-warnings']
}

/** The end of what a child writes to stderr, for the log. */
export function collectErrors(child: ConfinedChild): () => string {
  let text = ''
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    text = (text + chunk).slice(-4_096)
  })
  return () => text.trim()
}
