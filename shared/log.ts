import { type Logger, pino } from 'pino'

/** A structured logger: `log.info({ job_id }, 'job done')`. One JSON line per state change; never bodies, prompts or keys. */
export type Log = Logger

/** Opens the process's log on standard output. @param level One of pino's: trace debug info warn error fatal silent. */
export function openLog(level: string, service: string): Log {
  return pino({ level, base: { service }, timestamp: pino.stdTimeFunctions.isoTime })
}
