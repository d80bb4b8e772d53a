import type { StepView } from '#services/cli/client/job.ts'
import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'

export const steps: Command = {
  summary: 'List the recorded steps of a composed job',
  help: `Usage: sluice steps JOB

Lists the recorded steps of a composed job, such as a research job, in execution order. On a terminal, each line shows a step's
input. With --json, or when output is not a TTY, each step is a line of JSON with its input and output. Such a file is a complete
record of the run, useful to compare two runs and to attach to a bug report.

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
      if (!out.isHumanReadable) await out.json(step)
      else
        await out.write(
          `${lineOf(step)
            .slice(0, out.columns - 1)
            .toWellFormed()}\n`,
        )
    }
    if (out.isHumanReadable && count === 0) out.note('This job has no recorded steps.')
    return EXIT.ok
  },
}

function lineOf({ number, kind, input, input_cut }: StepView): string {
  const text = plain(JSON.stringify(input ?? input_cut?.beginning ?? null))
  return `${String(number).padStart(4)} ${plain(kind).padEnd(8)} ${text}`
}
