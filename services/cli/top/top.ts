import { type Command, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { showLive } from './live.ts'
import { Reader } from './snapshot.ts'

const INTERVAL_SECONDS = { default: 2, max: 3_600 } as const

/** `sluice top` */
export const top: Command = {
  summary: 'Watch pools, models, workers and jobs, live',
  help: `Usage: sluice top [--interval N] [--once]

Shows what works and what waits, again and again, until q or Ctrl-C: each pool
with its running and its slots, the calls and durable jobs that wait and since
when the oldest of these; models; workers; and the jobs that run and wait. That
is for keys with the scope admin. Any other key sees its models and the jobs of
its project. Elsewhere than on a terminal one line of JSON tells it once.

Keys:
  q                quit
  s a m p e        sort jobs by status, age, model, project or endpoint
  r                turn the order round
  up, down, j, k   scroll the jobs; also page up, page down and home

Options:
  --interval N  seconds between two looks (default ${INTERVAL_SECONDS.default}, most ${INTERVAL_SECONDS.max})
  --once        one line of JSON, also on a terminal

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
    if (!out.isForPeople || values.has('once')) {
      await out.json(first)
      return EXIT.ok
    }
    const options = { out, input: process.stdin, url: api.http.url, intervalMs: seconds * 1_000 }
    const signal = await showLive(reader, first, options)
    // The others end a process as if nobody listened, now that the terminal is as it was.
    if (signal !== undefined && signal !== 'SIGINT') process.kill(process.pid, signal)
    return signal === undefined ? EXIT.ok : EXIT.interrupted
  },
}
