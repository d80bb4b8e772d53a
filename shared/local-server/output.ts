import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import type { Log } from '#shared/log/log.ts'

const LINE_CHARACTERS_MAX = 2_000
/** Maximum logged lines per minute: a library that warns about every audio frame must not fill the disk. */
const LINES_A_MINUTE = 60
const MINUTE_MS = 60_000

/** Logs the server's stderr. JSON lines are its own; all other lines come from libraries. */
export function logOutput(stderr: Readable, log: Log): void {
  let windowMs = Date.now()
  let lines = 0
  createInterface({ input: stderr }).on('line', (line) => {
    if (Date.now() - windowMs > MINUTE_MS) {
      if (lines > LINES_A_MINUTE) log.warn({ lines: lines - LINES_A_MINUTE }, 'local model server log lines dropped')
      windowMs = Date.now()
      lines = 0
    }
    lines += 1
    if (lines <= LINES_A_MINUTE) logLine(line.slice(0, LINE_CHARACTERS_MAX), log)
  })
}

function logLine(line: string, log: Log): void {
  const fields = parse(line)
  if (!fields) return log.warn({ line }, 'local model server output')
  const { msg, ...rest } = fields
  // `is_complete: false` means that the server could not apply all restrictions to itself.
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
