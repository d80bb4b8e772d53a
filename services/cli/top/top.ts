import { type Command, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { showLive } from './live.ts'
import { Reader } from './snapshot.ts'

const INTERVAL_SECONDS = { default: 2, max: 3_600 } as const

export const top: Command = {
  summary: 'Live view of pools, models, workers and jobs',
  help: `Usage: sluice top [--interval N] [--once]

Shows pools with slots and queue lengths, models, workers, and running and
queued jobs; refreshes until q or Ctrl-C. A key with the admin scope sees the
whole fleet. Any other key sees its models and the jobs of its project. When
output is not a TTY, prints one snapshot as a line of JSON.

Keys:
  q                quit
  s a m p e        sort jobs by status, age, model, project or endpoint
  r                reverse the order
  up, down, j, k   scroll the jobs; also page up, page down and home

Options:
  --interval N  refresh interval in seconds (default ${INTERVAL_SECONDS.default}, maximum ${INTERVAL_SECONDS.max})
  --once        print one snapshot as a line of JSON, even on a terminal

Examples:
  sluice top
  sluice top --interval 10
  sluice top --once | jq '.pools[] | {id, running, slots}'`,
  options: { interval: { type: 'string' }, once: { type: 'boolean' } },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const seconds = values.count('interval', 1, INTERVAL_SECONDS.max) ?? INTERVAL_SECONDS.default
    const reader = new Reader(api)
    const first = await reader.read()
    if (!out.isHumanReadable || values.has('once')) {
      await out.json(first)
      return EXIT.ok
    }
    const options = { out, input: process.stdin, url: api.http.url, intervalMs: seconds * 1_000 }
    const signal = await showLive(reader, first, options)
    // The terminal is restored. Re-raise the signal, so that the process ends with the status that the signal causes by default.
    if (signal !== undefined && signal !== 'SIGINT') process.kill(process.pid, signal)
    return signal === undefined ? EXIT.ok : EXIT.interrupted
  },
}
