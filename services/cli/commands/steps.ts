import type { StepView } from '#services/cli/client/job.ts'
import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'

/** `sluice steps` */
export const steps: Command = {
  summary: 'Show what a composed job asked for, step by step',
  help: `Usage: sluice steps JOB

Shows the steps of a composed job, such as a research, in the order they were done: what each asked for and what it got. Elsewhere
than on a terminal, and with --json, each is a line of JSON with all of it. That file is the record of the run: two of them tell
where two runs parted, and a bug report says more with one.

Examples:
  sluice steps job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice steps job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F > run.jsonl
  sluice steps job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --json | jq -r 'select(.kind == "search").input.query'`,
  options: {},
  async run({ args, api, out }): Promise<ExitCode> {
    const id = onlyArgument(args, 'JOB')
    let count = 0
    for await (const step of api.steps(id)) {
      count++
      if (!out.isForPeople) await out.json(step)
      else
        await out.write(
          `${lineOf(step)
            .slice(0, out.columns - 1)
            .toWellFormed()}\n`,
        )
    }
    if (out.isForPeople && count === 0) out.note('It has done no steps.')
    return EXIT.ok
  },
}

function lineOf({ number, kind, input, input_cut }: StepView): string {
  const asked = plain(JSON.stringify(input ?? input_cut?.beginning ?? null))
  return `${String(number).padStart(4)} ${plain(kind).padEnd(8)} ${asked}`
}
