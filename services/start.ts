import { existsSync } from 'node:fs'
import { flushCompileCache } from 'node:module'
import { parseArgs } from 'node:util'
import { type Config, ConfigError, loadConfig } from '#shared/config/config.ts'
import { openLog } from '#shared/log/log.ts'
import { openPorts, portsService } from '#shared/ports.ts'
import { compactWhenIdle } from '#shared/process/compact-heap.ts'
import { type Service, stopAll, stopOnSignals } from '#shared/process/lifecycle.ts'
import packageJson from '../package.json' with { type: 'json' }
import { openHealthPort } from './health-port.ts'
import type { Ingress } from './ingress/ingress.ts'
import { ROLES, type Role, SERVICES } from './services.ts'
import { greetingOf } from './startup-banner.ts'

const HELP = `Usage: node services/main.js [role ...]

Runs the given roles in one process. Without a role, runs all roles.

Roles:
${ROLES.map((role) => `  ${role.padEnd(13)}  ${SERVICES[role].does}`).join('\n')}

Roles in several processes communicate through Kafka: set KAFKA_BROKERS for each
process. Settings are read from the environment and from .env. The file
.env.example lists all settings.

Options:
  -h, --help     show this help
  -v, --version  show the version
`

await main()

async function main(): Promise<void> {
  const roles = readArguments()
  const config = readConfig(roles)
  const log = openLog(config.logLevel, isWhole(roles) ? 'sluice' : roles.join('+'), config.logFormat)
  const fail = (error: unknown) => {
    log.fatal({ err: error }, 'fatal error; the process exits')
    process.exit(1)
  }
  process.on('uncaughtException', fail)
  process.on('unhandledRejection', fail)
  for (const role of roles) await SERVICES[role].check?.(config).catch(exitWithProblems)
  const { metricsHost, metricsPort } = config
  const opened = metricsPort === undefined ? undefined : openHealthPort(metricsPort, metricsHost, log)
  const healthPort = await opened?.catch(exitWithProblems)
  // The first start creates this folder later, when it downloads models. If the folder is missing now, then this is the
  // first start.
  const isFirst = !existsSync(config.weightsDir)
  const role = isWhole(roles) ? undefined : roles.join('+')
  const opening = openPorts(config, log, packageJson.version, isWhole(roles), fail, undefined, role)
  const ports = await opening.catch(exitWithProblems)
  const services: Service[] = []
  // From here on, a signal stops the services that have started so far.
  stopOnSignals(services, (roles.includes('ingress') ? config.drainNoticeMs : 0) + config.drainMs, log)
  services.push(portsService(ports))
  for (const role of ROLES) {
    if (!roles.includes(role)) continue
    const service = await SERVICES[role].start(ports).catch(async (error: unknown) => {
      await stopAll(services, 1, log)
      return exitWithProblems(error)
    })
    services.push(service)
  }
  // Node writes its compile cache only at a normal exit. Without this flush, a killed process would leave no cache.
  flushCompileCache()
  compactWhenIdle()
  log.info(roles.length === 1 ? { role: roles[0] } : { roles }, 'service ready')
  healthPort?.show(services, ports)
  const ingress = services.find((service): service is Ingress => service.name === 'ingress')
  if (ingress)
    greet(greetingOf(config, ingress, ports.models.served, isFirst ? roles : [], process.stderr.isTTY === true))
}

function readArguments(): Role[] {
  const { values, positionals } = parseOptions()
  if (values.help || values.version) {
    process.stdout.write(values.help ? HELP : `${packageJson.version}\n`)
    process.exit(0)
  }
  const unknown = positionals.filter((role) => !Object.hasOwn(SERVICES, role))
  if (unknown.length > 0) exitWith(`Unknown role: ${unknown.join(', ')}.\n\n${HELP}`)
  return positionals.length > 0 ? (positionals as Role[]) : ROLES
}

function parseOptions() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: { help: { type: 'boolean', short: 'h' }, version: { type: 'boolean', short: 'v' } },
    })
  } catch (error) {
    return exitWith(`${error instanceof Error ? error.message : String(error)}\n\n${HELP}`)
  }
}

function readConfig(roles: readonly Role[]): Config {
  try {
    const config = loadConfig()
    if (!isWhole(roles) && !config.kafka)
      throw new ConfigError(['KAFKA_BROKERS: must be set if roles run in several processes'])
    return config
  } catch (error) {
    return exitWithProblems(error)
  }
}

function isWhole(roles: readonly Role[]): boolean {
  return ROLES.every((role) => roles.includes(role))
}

function exitWithProblems(error: unknown): never {
  if (error instanceof ConfigError)
    return exitWith(`Cannot start:\n${error.problems.map((line) => `  - ${line}`).join('\n')}\n`)
  return exitWith(`Cannot start: ${error instanceof Error ? error.message : String(error)}\n`)
}

function exitWith(text: string): never {
  process.stderr.write(text)
  process.exit(2)
}

/** Prints the first steps for a user to stderr, whether stderr is a terminal or a log. */
function greet(lines: readonly string[]): void {
  // The line is cleared first, because a progress bar may occupy it.
  const start = process.stderr.isTTY ? '\r\x1b[K' : ''
  process.stderr.write(`${start}\n${lines.join('\n')}\n\n`)
}
