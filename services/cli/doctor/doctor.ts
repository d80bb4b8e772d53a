import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { type Command, noArguments, type Values } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import type { Output } from '#services/cli/text/output.ts'
import type { Config } from '#shared/config/config.ts'
import { type Check, type Finding, failed, ok, runCheck } from '#shared/doctor/check.ts'
import { checksOfMachine } from '#shared/doctor/doctor.ts'
import { nodeFinding } from '#shared/doctor/machine.ts'
import { fleetCheck } from './fleet.ts'
import { printFinding } from './print.ts'
import { serviceCheck } from './service.ts'

/** `sluice doctor` */
export const doctor: Command = {
  summary: 'Check everything the service depends on',
  help: `Usage: sluice doctor [--json]

Checks what the service depends on, with the settings of this directory and environment, and changes nothing: Node, the
settings, the data directory, the models and their weights, the sandboxes that can run code here and what each guarantees,
Postgres (DATABASE_URL), Kafka (KAFKA_BROKERS), the service itself and the key; with a key for operators also the fleet: pools
without workers, failing upstreams, pauses, dead letters. Each line is OK, SKIP (not
there, and not needed), WARN or FAIL, and says how to mend what is wrong. Exits 1 when anything is FAIL.

Examples:
  sluice doctor
  sluice doctor --json | jq -r 'select(.status == "fail") | .fix'
  DATABASE_URL=postgres://sluice@db/sluice KAFKA_BROKERS=kafka:9092 sluice doctor`,
  options: {},
  async run({ values, args, config, out, api }): Promise<ExitCode> {
    noArguments(args)
    const say = printerOf(values, out)
    await say([nodeFinding(), ok('settings', 'understood')])
    let isFit = nodeFinding().status !== 'fail'
    for (const check of await checksOf(config, values, api)) {
      const findings = await runCheck(check, config)
      await say(findings)
      isFit &&= findings.every(({ status }) => status !== 'fail')
    }
    return isFit ? EXIT.ok : EXIT.failed
  },
  async runWithoutSettings(problems, values, out): Promise<ExitCode> {
    const fix = 'Mend it in the environment or in .env; .env.example lists every setting.'
    await printerOf(values, out)([nodeFinding(), ...problems.map((problem) => failed('settings', problem, fix))])
    return EXIT.failed
  },
}

function printerOf(values: Values, out: Output): (findings: readonly Finding[]) => Promise<void> {
  return async (findings) => {
    for (const finding of findings) await (values.has('json') ? out.json(finding) : printFinding(out, finding))
  }
}

/** What the service looks at itself, with what it leaves to this command: the sandboxes, each of which is opened, and how it is reached. */
async function checksOf(config: Config, values: Values, api: JobsApi): Promise<Check[]> {
  const { sandboxCheck } = await import('#shared/doctor/sandbox.ts')
  const isTold = values.text('url') !== undefined || config.env.SLUICE_URL !== undefined
  const hasKey = values.text('key') !== undefined || config.sluiceApiKey !== undefined
  const service = serviceCheck(api, { isTold, hasKey })
  return [...(await checksOfMachine()), sandboxCheck, service, fleetCheck(api)]
}
