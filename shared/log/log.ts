import { type Logger, pino } from 'pino'
import { BatchedLines } from './batched.ts'
import { errorFields } from './error.ts'
import { logText } from './text.ts'

/** A structured logger: `log.info({ job_id }, 'job done')`. One line per state change; never bodies, prompts or keys. */
export type Log = Logger

const SERIALIZERS = { err: errorFields }

/**
 * Opens the log of the process on standard output: text on a terminal, otherwise JSON lines.
 *
 * @param level One of pino's: trace debug info warn error fatal silent.
 */
export function openLog(level: string, service: string): Log {
  const options = { level, base: { service }, timestamp: pino.stdTimeFunctions.isoTime, serializers: SERIALIZERS }
  if (!process.stdout.isTTY) return pino(options, new BatchedLines(pino.destination({ fd: 1, sync: true })))
  // Clear the line first: a progress bar may be there, which is drawn again below.
  return pino(options, { write: (json) => process.stdout.write(`\r\x1b[K${logText(json)}`) })
}
