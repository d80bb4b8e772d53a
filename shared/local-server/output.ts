import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import type { Log } from '#shared/log/log.ts'

const LINE_CHARACTERS_MAX = 2_000
/** Lines a minute that are logged; a model that complains about every frame must not fill a disk. */
const LINES_A_MINUTE = 60
const MINUTE_MS = 60_000

/** Logs what the server writes: its own lines are JSON, everything else comes from libraries. */
export function logOutput(stderr: Readable, log: Log): void {
  let windowMs = Date.now()
  let lines = 0
  createInterface({ input: stderr }).on('line', (line) => {
    if (Date.now() - windowMs > MINUTE_MS) {
      if (lines > LINES_A_MINUTE) log.warn({ lines: lines - LINES_A_MINUTE }, 'local model server lines left out')
      windowMs = Date.now()
      lines = 0
    }
    lines += 1
    if (lines <= LINES_A_MINUTE) logLine(line.slice(0, LINE_CHARACTERS_MAX), log)
  })
}

function logLine(line: string, log: Log): void {
  const fields = parse(line)
  if (!fields) return log.warn({ line }, 'local model server wrote')
  const { msg, ...rest } = fields
  // What could not be taken from it is for the operator to know.
  if (rest.is_complete === false) log.warn(rest, String(msg))
  else log.info(rest, String(msg))
}

function parse(line: string): Record<string, unknown> | undefined {
  if (!line.startsWith('{"msg"')) return undefined
  try {
    return JSON.parse(line) as Record<string, unknown>
  } catch {
    return undefined
  }
}
