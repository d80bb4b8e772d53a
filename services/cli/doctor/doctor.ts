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

export const doctor: Command = {
  summary: 'Check the settings and dependencies of the service',
  help: `Usage: sluice doctor [--json]

Checks the dependencies of the service with the settings of this directory and environment, without changing anything: Node,
settings, data directory, models and weights, sandboxes and their guarantees, Postgres (DATABASE_URL), Kafka (KAFKA_BROKERS), the
service and the API key. With an admin key, doctor also checks the fleet for pools without workers, failing upstreams, pauses and
dead letters.

Each line is OK, SKIP (missing but not needed), WARN or FAIL, with a remedy for each problem. The exit code is 1 if any check is
FAIL.

Examples:
  sluice doctor
  sluice doctor --json | jq -r 'select(.status == "fail") | .fix'
  DATABASE_URL=postgres://sluice@db/sluice KAFKA_BROKERS=kafka:9092 sluice doctor`,
  options: {},
  async run({ values, args, config, out, api }): Promise<ExitCode> {
    noArguments(args)
    const print = printerOf(values, out)
    await print([nodeFinding(), ok('settings', 'valid')])
    let hasPassed = nodeFinding().status !== 'fail'
    for (const check of await checksOf(config, values, api)) {
      const findings = await runCheck(check, config)
      await print(findings)
      hasPassed &&= findings.every(({ status }) => status !== 'fail')
    }
    return hasPassed ? EXIT.ok : EXIT.failed
  },
  async runWithoutSettings(problems, values, out): Promise<ExitCode> {
    const fix = 'Fix the setting in the environment or in .env; .env.example lists all settings.'
    await printerOf(values, out)([nodeFinding(), ...problems.map((problem) => failed('settings', problem, fix))])
    return EXIT.failed
  },
}

function printerOf(values: Values, out: Output): (findings: readonly Finding[]) => Promise<void> {
  return async (findings) => {
    for (const finding of findings) await (values.has('json') ? out.json(finding) : printFinding(out, finding))
  }
}

/** The checks that the service runs itself, plus those of this command only: opening each sandbox, the service and the fleet. */
async function checksOf(config: Config, values: Values, api: JobsApi): Promise<Check[]> {
  const { sandboxCheck } = await import('#shared/doctor/sandbox.ts')
  const isUrlConfigured = values.text('url') !== undefined || config.env.SLUICE_URL !== undefined
  const hasKey = values.text('key') !== undefined || config.sluiceApiKey !== undefined
  const service = serviceCheck(api, { isUrlConfigured, hasKey })
  return [...(await checksOfMachine()), sandboxCheck, service, fleetCheck(api)]
}
