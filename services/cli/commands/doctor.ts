import { z } from 'zod'
import type { HttpResponse } from '#services/cli/client/http.ts'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandError, coloured, EXIT, type ExitCode, type Output, plain } from '#services/cli/text/output.ts'
import type { Config } from '#shared/config/config.ts'
import { type Check, type Finding, failed, ok, reasonOf, runCheck, skipped, warned } from '#shared/doctor/check.ts'
import { checksOfMachine } from '#shared/doctor/doctor.ts'
import { nodeFinding } from '#shared/doctor/machine.ts'
import { type Command, noArguments, type Values } from './command.ts'

const Ready = z.looseObject({
  status: z.string(),
  problems: z.array(z.string()).optional(),
  preparing: z.array(z.string()).optional(),
})

const LABELS = {
  ok: ['OK  ', 'green'],
  skip: ['SKIP', 'dim'],
  warn: ['WARN', 'yellow'],
  fail: ['FAIL', 'red'],
} as const
const NAME_WIDTH = 9

export const doctor: Command = {
  summary: 'Check the settings and dependencies of the service',
  help: `Usage: sluice doctor [--json]

Checks the dependencies of the service with the settings of this directory and environment, without changing anything: Node,
settings, data directory, models and weights, sandboxes and their guarantees, Postgres (DATABASE_URL), Kafka (KAFKA_BROKERS), the
service and the API key. Doctor also reports failing models, refused calls and nearly spent budgets of the key's project. With an admin
key, doctor reports those of the fleet, and also pools without workers, pauses and dead letters. The running service makes the same
checks with its own settings. With an admin key, doctor also reports the results of the service that differ from those above.

Each line is OK, SKIP (missing but not needed), WARN or FAIL, with a remedy for each problem. The exit code is 1 if any check is
FAIL.

Examples:
  sluice doctor
  sluice doctor --json | jq -r 'select(.status == "fail") | .remediation'
  DATABASE_URL=postgres://sluice@db/sluice KAFKA_BROKERS=kafka:9092 sluice doctor`,
  options: {},
  async run({ values, args, config, out, api }): Promise<ExitCode> {
    noArguments(args)
    const print = printerOf(values, out)
    await print([nodeFinding(), ok('settings', 'valid in this directory and environment')])
    const all: Finding[] = []
    let hasPassed = nodeFinding().status !== 'fail'
    for (const check of await checksOf(config, values, api, all)) {
      const findings = await runCheck(check, config)
      all.push(...findings)
      await print(findings)
      hasPassed &&= findings.every(({ status }) => status !== 'fail')
    }
    return hasPassed ? EXIT.ok : EXIT.failed
  },
  async runWithoutSettings(problems, values, out): Promise<ExitCode> {
    const remediation = 'Fix the setting in the environment or in .env; .env.example lists all settings.'
    await printerOf(
      values,
      out,
    )([nodeFinding(), ...problems.map((problem) => failed('settings', problem, remediation))])
    return EXIT.failed
  },
}

function printerOf(values: Values, out: Output): (findings: readonly Finding[]) => Promise<void> {
  return async (findings) => {
    for (const finding of findings) await (values.has('json') ? out.json(finding) : printFinding(out, finding))
  }
}

/**
 * Returns all checks: those that the service also runs, and those that only this command runs (each sandbox, the
 * service, its settings and the fleet).
 *
 * @param earlier Findings of the checks that have run
 */
async function checksOf(config: Config, values: Values, api: JobsApi, earlier: readonly Finding[]): Promise<Check[]> {
  const { sandboxCheck } = await import('#shared/doctor/sandbox.ts')
  const isUrlConfigured = values.text('url') !== undefined || config.env.SLUICE_URL !== undefined
  const hasKey = values.text('key') !== undefined || config.sluiceApiKey !== undefined
  const service = serviceCheck(api, { isUrlConfigured, hasKey })
  return [...(await checksOfMachine()), sandboxCheck, service, settingsCheck(api, earlier), fleetCheck(api)]
}

async function printFinding(
  out: Output,
  { check, status, message, remediation, details = [] }: Finding,
): Promise<void> {
  const [label, colour] = LABELS[status]
  const line = `${coloured(colour, label)}  ${check.padEnd(NAME_WIDTH)}  ${plain(message)}\n`
  const more = [...details.map((detail) => `- ${plain(detail)}`), ...(remediation ? [`→ ${remediation}`] : [])]
  await out.write(line + more.map((text) => `${' '.repeat(NAME_WIDTH + 8)}${text}\n`).join(''))
}

function fleetCheck(api: JobsApi): Check {
  return {
    name: 'fleet',
    remediation: 'Check the log of the service.',
    async run() {
      try {
        return await api.admin.findings('fleet')
      } catch (error) {
        if (!(error instanceof CommandError)) throw error
        // An unreachable service adds no result here, because the check `service` already reports it.
        if (error.exit !== EXIT.refused) return []
        const skip = skipped('fleet', 'not checked: requires a key with the admin scope')
        return [skip, ...(await api.admin.findings('project').catch(() => []))]
      }
    },
  }
}

/** Parts of a message that change from run to run, such as free space. */
const MEASUREMENT = /\d+(?:\.\d+)? (?:GiB|ms|s|%)/g

/**
 * Compares the findings of this command with those of the running service, which runs the same checks with its own
 * settings. A difference means that the two processes have different settings or run on different machines.
 */
function settingsCheck(api: JobsApi, earlier: readonly Finding[]): Check {
  const { url } = api.http
  const keyOf = ({ check, status, message }: Finding) => `${check} ${status} ${message.replaceAll(MEASUREMENT, '')}`
  return {
    name: 'settings',
    remediation: 'Check the log of the service.',
    async run() {
      const local = new Set(earlier.map(keyOf))
      try {
        const different = (await api.admin.findings('machine')).filter((finding) => !local.has(keyOf(finding)))
        if (different.length === 0) return [ok('settings', `the service at ${url} has the same results`)]
        const message = `the checks of the service at ${url} have other results than the checks here`
        const next = 'The checks above used the settings of this shell. The results of the service follow.'
        return [
          warned('settings', message, next),
          ...different.map((finding) => ({ ...finding, message: `in the service: ${finding.message}` })),
        ]
      } catch (error) {
        if (!(error instanceof CommandError)) throw error
        if (error.exit !== EXIT.refused) return []
        const reason = `the service at ${url} shows the results of its own checks only to a key with the admin scope`
        return [skipped('settings', `only the settings of this directory and environment were checked; ${reason}`)]
      }
    },
  }
}

interface ServiceOptions {
  /** Whether --url or SLUICE_URL is set. If true, then an unreachable service is a failure instead of a warning. */
  readonly isUrlConfigured: boolean
  readonly hasKey: boolean
}

function serviceCheck(api: JobsApi, { isUrlConfigured, hasKey }: ServiceOptions): Check {
  const { url } = api.http
  return {
    name: 'service',
    remediation: 'Check --url or SLUICE_URL; another server or a proxy responded.',
    async run() {
      const response = await api.http.send('/readyz').catch((error: unknown) => absence(error, url, isUrlConfigured))
      if ('check' in response) return [response]
      return [await readiness(response, url), await keyFinding(api, hasKey)]
    },
  }
}

async function readiness(response: HttpResponse, url: string): Promise<Finding> {
  const ready = Ready.parse(await response.body.json())
  const preparing = ready.preparing?.length ? `; models being prepared: ${ready.preparing.join(', ')}` : ''
  if (response.statusCode === 200) return ok('service', `ready at ${url}${preparing}`)
  const reason = ready.problems?.join(' ') ?? ready.status
  return warned(
    'service',
    `${url} is not ready: ${reason}`,
    'Check the log of the service and the failed checks above.',
  )
}

function absence(error: unknown, url: string, isUrlConfigured: boolean): Finding {
  if (!(error instanceof CommandError)) throw error
  const message = `cannot reach ${url}: ${reasonOf(error.cause)}`
  if (isUrlConfigured) return failed('service', message, 'Start the service, or correct --url or SLUICE_URL.')
  return warned('service', message, 'Start the service (npm start), or set its address with --url or SLUICE_URL.')
}

async function keyFinding(api: JobsApi, hasKey: boolean): Promise<Finding> {
  if (!hasKey) return warned('key', 'no API key', 'Set SLUICE_API_KEY or --key. To create a key: sluice keys create')
  try {
    const models = await api.models()
    return ok('key', `valid, for ${models.length} ${models.length === 1 ? 'model' : 'models'}`)
  } catch (error) {
    if (!(error instanceof CommandError) || error.exit !== EXIT.refused) throw error
    return failed('key', error.message, error.next ?? 'Create another key: sluice keys create')
  }
}
