import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { z } from 'zod'
import { ROLES } from '#services/services.ts'
import { parseConfig } from '#shared/config/config.ts'
import { graceSecondsMin, hasDeployTool, strangeVariables } from './variables.ts'

/*
 * Checks docker-compose.yml, the image and the systemd units. Every setting must exist, services must restart after a failure and have limits,
 * and the stop timeout must allow a drain.
 */

const HAPROXY = ['/usr/sbin/haproxy', '/usr/local/sbin/haproxy'].find((path) => existsSync(path))
const Service = z.object({
  image: z.string().optional(),
  command: z.array(z.string()).optional(),
  restart: z.string(),
  environment: z.record(z.string(), z.union([z.string(), z.number()])).optional(),
  env_file: z.array(z.object({ path: z.string(), required: z.boolean() })).optional(),
  ports: z.array(z.string()).default([]),
  volumes: z.array(z.string()).default([]),
  read_only: z.boolean().optional(),
  stop_grace_period: z.string().optional(),
  deploy: z.object({ resources: z.object({ limits: z.object({ cpus: z.string(), memory: z.string() }) }) }),
})
const text = readFileSync('docker-compose.yml', 'utf8')
const compose = z
  .object({ services: z.record(z.string(), Service), volumes: z.record(z.string(), z.null()) })
  .parse(parse(text, { merge: true }))
const roles = Object.entries(compose.services).filter(([name]) => (ROLES as readonly string[]).includes(name))

describe('docker-compose.yml', () => {
  it('runs every role, each with settings that exist and are valid', () => {
    expect(roles.map(([name]) => name).sort()).toEqual([...ROLES].sort())
    for (const [name, { command, environment = {}, env_file }] of roles) {
      expect(command, name).toEqual([name])
      expect(strangeVariables(Object.keys(environment)), name).toEqual([])
      const values = Object.entries(environment).map(([key, value]) => [key, filled(String(value))])
      expect(() => parseConfig(Object.fromEntries(values)), name).not.toThrow()
      expect(env_file, name).toEqual([{ path: '.env', required: false }])
    }
  })

  it('restarts each service and limits its memory', () => {
    for (const [name, { restart }] of Object.entries(compose.services)) expect(restart, name).toBe('unless-stopped')
  })

  it('gives each role enough time for its drain', () => {
    for (const [name, { stop_grace_period = '' }] of roles)
      expect(Number.parseInt(stop_grace_period, 10), name).toBeGreaterThanOrEqual(graceSecondsMin({}))
  })

  it('contains no password and names each variable that has to be set', () => {
    expect(text).not.toMatch(/PASSWORD: (?!"?\$\{)/)
    for (const name of ['POSTGRES_PASSWORD', 'SLUICE_API_KEY'])
      expect(text).toContain(`\${${name}:?set ${name} in .env`)
  })

  it('publishes no port of a role, so that each role can be scaled', () => {
    for (const [name, { ports }] of roles) expect(ports, name).toEqual([])
    expect(compose.services.balancer?.ports).toHaveLength(1)
  })

  it('mounts files that exist, and declares each volume', () => {
    for (const mount of Object.values(compose.services).flatMap(({ volumes }) => volumes)) {
      const [source = ''] = mount.split(':')
      expect(source.startsWith('./') ? existsSync(source) : source in compose.volumes, mount).toBe(true)
    }
  })

  it.skipIf(!hasDeployTool('check-jsonschema'))('is valid by the schema of the Compose specification', () => {
    const args = ['--builtin-schema', 'vendor.compose-spec']
    const checked = spawnSync('check-jsonschema', [...args, 'docker-compose.yml'], { encoding: 'utf8' })
    expect(checked.status, checked.stdout + checked.stderr).toBe(0)
    const wrong = text.replaceAll('restart:', 'restrat:')
    expect(spawnSync('check-jsonschema', [...args, '-'], { input: wrong }).status).toBe(1)
  })

  it.skipIf(!HAPROXY)('has a load balancer with a valid configuration', () => {
    execFileSync(HAPROXY ?? '', ['-c', '-q', '-f', 'deploy/compose/haproxy.cfg'])
  })
})

describe('deploy/Dockerfile', () => {
  const lines = readFileSync('deploy/Dockerfile', 'utf8').split('\n')
  const last = (instruction: string) => lines.findLast((line) => line.startsWith(`${instruction} `)) ?? ''

  it.skipIf(!hasDeployTool('hadolint'))('passes hadolint, as does deploy/sandbox.Dockerfile', () => {
    const files = ['deploy/Dockerfile', 'deploy/sandbox.Dockerfile']
    const { status, stdout } = spawnSync('hadolint', files, { encoding: 'utf8' })
    expect(status, stdout).toBe(0)
  })

  it('runs node as process 1 and as a numeric user other than root', () => {
    expect(last('USER')).toMatch(/^USER [1-9]\d*:[1-9]\d*$/)
    expect(last('ENTRYPOINT')).toMatch(/^ENTRYPOINT \["node", /)
  })

  it('checks its health at the port that it sets', () => {
    const variables = Object.fromEntries(
      [...last('ENV').matchAll(/(\w+)=(\S+)/g)].map(([, name, value]) => [name, value]),
    )
    expect(strangeVariables(Object.keys(variables))).toEqual([])
    expect(parseConfig(variables).metricsPort).toBe(8081)
    expect(lines.join('\n')).toMatch(/HEALTHCHECK[\s\S]*env\.METRICS_PORT}\/healthz/)
  })

  it('copies only files that exist', () => {
    const sources = lines
      .filter((line) => line.startsWith('COPY ') && !line.includes('--from'))
      .flatMap((line) => line.split(' ').slice(1, -1))
    expect(sources.filter((source) => !existsSync(source))).toEqual([])
    expect(sources.length).toBeGreaterThan(8)
  })
})

describe('deploy/systemd', () => {
  const unit = readFileSync('deploy/systemd/sluice@.service', 'utf8')
  const values = (key: string) => [...unit.matchAll(new RegExp(`^${key}=(.*)$`, 'gm'))].map(([, value = '']) => value)
  const assigned = (lines: string) => [...lines.matchAll(/(?:^| )([A-Z][A-Z0-9_]*)=/gm)].map(([, name = '']) => name)

  it('sets only settings that exist', () => {
    const names = [...values('Environment'), readFileSync('deploy/systemd/sluice.env.example', 'utf8')].flatMap(
      assigned,
    )
    expect(strangeVariables(names)).toEqual([])
    expect(names.length).toBeGreaterThan(10)
  })

  it('waits for the drain, and sends SIGTERM to the main process only', () => {
    expect(Number(values('TimeoutStopSec')[0])).toBeGreaterThanOrEqual(graceSecondsMin({}))
    expect(values('KillMode')).toEqual(['mixed'])
  })

  it('hides no part of /proc, which the sandbox mounts', () => {
    const hiding =
      /^(ProtectHostname|ProtectKernelLogs|ProtectKernelTunables|ProtectProc|ProcSubset|RestrictNamespaces)=/m
    expect(unit).not.toMatch(hiding)
  })
})

/** Replaces variables of Compose, such as `${NAME:?message}`, by a text that is long enough to be valid as a secret. */
function filled(value: string): string {
  return value.replaceAll(/\$\{\w+(:[^}]*)?\}/g, 'a-value-of-a-test')
}
