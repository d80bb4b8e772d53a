import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parse, parseAllDocuments, stringify } from 'yaml'
import { z } from 'zod'
import { ROLES } from '#services/services.ts'
import { parseConfig } from '#shared/config/config.ts'
import { loadModels } from '#shared/models/models.ts'
import { graceSecondsMin, hasDeployTool, strangeVariables } from './variables.ts'

/*
 * The Helm chart: every setting that the chart sets exists in Sluice, and a rendered Deployment is valid for Sluice. Rendering needs
 * the programs that `pip install -r test/deploy/requirements.txt` installs, in PATH, as in `.ci/run`. The tests pass the version of
 * Kubernetes, because a helm that was built by `go install` assumes version 1.20.
 */

const CHART = 'deploy/helm/sluice'
const KUBERNETES = '1.33.0'
const EXAMPLES = readdirSync('deploy/helm/examples').map((name) => join('deploy/helm/examples', name))
const PATH = process.env.PATH
const hasTools = hasDeployTool('helm', ['version']) && hasDeployTool('kubernetes-validate')

const Container = z.object({
  args: z.array(z.string()),
  env: z.array(z.object({ name: z.string(), value: z.string().optional() })),
  ports: z.array(z.object({ name: z.string(), containerPort: z.number() })),
  livenessProbe: z.object({ httpGet: z.object({ path: z.literal('/healthz'), port: z.literal('metrics') }) }),
  readinessProbe: z.object({ httpGet: z.object({ path: z.literal('/readyz'), port: z.literal('metrics') }) }),
  securityContext: z.object({
    readOnlyRootFilesystem: z.literal(true),
    allowPrivilegeEscalation: z.literal(false),
    capabilities: z.object({ drop: z.tuple([z.literal('ALL')]) }),
  }),
  volumeMounts: z.array(z.object({ name: z.string(), mountPath: z.string() })),
})
const PodTemplate = z.object({
  metadata: z.object({ labels: z.record(z.string(), z.string()) }),
  spec: z.object({
    terminationGracePeriodSeconds: z.number(),
    securityContext: z.object({ runAsNonRoot: z.literal(true) }),
    containers: z.tuple([Container]),
    volumes: z.array(z.object({ name: z.string() })),
  }),
})
const Resource = z.looseObject({
  kind: z.string(),
  metadata: z.object({ name: z.string() }),
  spec: z.record(z.string(), z.unknown()).optional(),
})

const fileOf = (path: string) => z.record(z.string(), z.unknown()).parse(parse(readFileSync(path, 'utf8')))
const Values = z.object({
  settings: z.record(z.string(), z.unknown()).default({}),
  secretKeys: z.record(z.string(), z.unknown()).default({}),
  models: z.array(z.unknown()).default([]),
  roles: z.record(z.string(), z.object({ settings: z.record(z.string(), z.unknown()).default({}) })).default({}),
})

describe('the Helm chart', () => {
  it('sets only settings that exist', () => {
    const helpers = readFileSync(join(CHART, 'templates/_helpers.tpl'), 'utf8')
    const names = [...helpers.matchAll(/"([A-Z][A-Z0-9_]+)"/g)].map(([, name = '']) => name)
    expect(names).toContain('KAFKA_SSL_CA')
    for (const path of [join(CHART, 'values.yaml'), ...EXAMPLES]) {
      const { settings, secretKeys, roles } = Values.parse(fileOf(path))
      const own = Object.values(roles).flatMap((role) => Object.keys(role.settings))
      names.push(...Object.keys(settings), ...Object.keys(secretKeys), ...own)
    }
    expect(strangeVariables(names)).toEqual([])
  })

  it('has every role in its values and in the schema of the values', () => {
    const Schema = z.object({
      properties: z.object({ roles: z.object({ properties: z.record(z.string(), z.unknown()) }) }),
    })
    const schema = Schema.parse(JSON.parse(readFileSync(join(CHART, 'values.schema.json'), 'utf8')))
    expect(Object.keys(schema.properties.roles.properties).sort()).toEqual([...ROLES].sort())
    expect(Object.keys(Values.parse(fileOf(join(CHART, 'values.yaml'))).roles).sort()).toEqual([...ROLES].sort())
  })

  it('names only models that a worker accepts, in its values and in each example', () => {
    const models = [join(CHART, 'values.yaml'), ...EXAMPLES].flatMap((path) => Values.parse(fileOf(path)).models)
    const directory = mkdtempSync(join(tmpdir(), 'sluice-chart-'))
    onTestFinished(() => rmSync(directory, { recursive: true }))
    const file = join(directory, 'models.yaml')
    writeFileSync(file, stringify({ models }))
    expect(loadModels(file).models.map(({ id }) => id)).toEqual(['echo-1', 'gpt-5-mini', 'qwen3-8b'])
  })
})

describe.skipIf(!hasTools)('the rendered Helm chart (needs test/deploy/requirements.txt)', () => {
  it.each(EXAMPLES)('has valid Deployments with %s', (example) => {
    const resources = rendered(['--values', example])
    const deployments = resources.filter(({ kind }) => kind === 'Deployment')
    expect(deployments.length).toBeGreaterThanOrEqual(3)
    for (const { metadata, spec } of deployments) checkDeployment(metadata.name, PodTemplate.parse(spec?.template))
  })

  it('has valid Deployments with the values of the guide, and with every role', () => {
    const guide = readFileSync('docs/operate/kubernetes.md', 'utf8')
    const values = /<<'END'\n([\s\S]*?)\nEND\n/.exec(guide)?.[1] ?? ''
    const all = ROLES.flatMap((role) => ['--set', `roles.${role}.enabled=true`])
    const deployments = rendered(['--values', '-', ...all], values).filter(({ kind }) => kind === 'Deployment')
    expect(deployments.map(({ metadata }) => metadata.name).sort()).toEqual(
      ROLES.map((role) => `sluice-${role}`).sort(),
    )
    for (const { metadata, spec } of deployments) checkDeployment(metadata.name, PodTemplate.parse(spec?.template))
  })

  it('increases the grace period of a pod for a longer drain', () => {
    const set = ['--values', EXAMPLES[0] ?? '', '--set', 'drain.drainMs=600500,drain.noticeMs=20000']
    const [ingress] = rendered(set).filter(
      ({ metadata, kind }) => kind === 'Deployment' && /ingress$/.test(metadata.name),
    )
    const template = PodTemplate.parse(ingress?.spec?.template)
    expect(template.spec.terminationGracePeriodSeconds).toBe(631)
  })

  it('leaves the number of replicas to the autoscaler', () => {
    const set = ['--values', EXAMPLES[0] ?? '', '--set', 'roles.inference.autoscaling.kind=keda']
    const resources = rendered(set)
    const named = resources.filter(({ metadata }) => metadata.name === 'sluice-inference')
    expect(named.find(({ kind }) => kind === 'Deployment')?.spec).not.toHaveProperty('replicas')
    const scaled = named.find(({ kind }) => kind === 'ScaledObject')
    // Without this setting, KEDA would read a missing metric as 0 and stop all workers.
    expect(scaled?.spec?.triggers).toMatchObject([{ metadata: { ignoreNullValues: 'false' } }])
  })

  it('labels scraped metrics with the job name that the alert rules select', () => {
    const resources = rendered(['--values', EXAMPLES[0] ?? '', '--set', 'prometheus.podMonitor=true'])
    const monitor = resources.find(({ kind }) => kind === 'PodMonitor')
    const relabelings = [{ targetLabel: 'job', replacement: 'sluice' }]
    expect(monitor?.spec?.podMetricsEndpoints).toMatchObject([{ relabelings }])
    expect(readFileSync('deploy/observability/rules.yaml', 'utf8')).toContain('up{job="sluice"}')
  })

  it.each([
    ['kafka.brokers is empty', 'kafka.brokers='],
    ['kafka', 'kafka.brokers=broker-without-port'],
    ['no store of blobs', 'blobs.volume.create=false'],
    ['both set', 'blobs.s3.url=s3://bucket'],
    ['autoscaling', 'roles.ingress.autoscaling.kind=keda'],
    ['replica', 'roles.ingress.replica=3'],
  ])('refuses wrong values and names the problem: %s', (problem, set) => {
    const args = [
      'template',
      'sluice',
      CHART,
      '--kube-version',
      KUBERNETES,
      '--values',
      EXAMPLES[0] ?? '',
      '--set',
      set,
    ]
    const { status, stderr } = spawnSync('helm', args, { env: { PATH }, encoding: 'utf8' })
    expect(status).not.toBe(0)
    expect(stderr).toContain(problem)
  })

  it.each(EXAMPLES)('renders resources that the Kubernetes API accepts with %s', (example) => {
    const all = ROLES.flatMap((role) => ['--set', `roles.${role}.enabled=true`])
    const text = template(['--values', example, ...all])
    const { status, stdout, stderr } = kubernetesValidate(text)
    expect(status, stdout + stderr).toBe(0)
    expect(stdout).toContain('passed for resource deployment/sluice-scheduler')
    // Kinds without a schema are custom resources of operators. The Kubernetes API has a schema for every other kind.
    const unknown = [...stdout.matchAll(/schema for kind (\w+)/g)].map(([, kind = '']) => kind)
    expect(unknown.filter((kind) => !['PodMonitor', 'ScaledObject', 'PrometheusRule'].includes(kind))).toEqual([])
  })

  it('fails the validation if a resource has a field that is unknown to the Kubernetes API', () => {
    const text = template(['--values', EXAMPLES[0] ?? '']).replaceAll('terminationGracePeriodSeconds', 'graceSeconds')
    const { status, stdout } = kubernetesValidate(text)
    expect(status).not.toBe(0)
    expect(stdout).toContain('graceSeconds')
  })

  it('passes helm lint', () => {
    execFileSync('helm', ['lint', '--strict', CHART, '--values', EXAMPLES[0] ?? ''], { env: { PATH } })
  })
})

function template(args: readonly string[], input = ''): string {
  const command = ['template', 'sluice', CHART, '--namespace', 'sluice', '--kube-version', KUBERNETES, ...args]
  return execFileSync('helm', command, { env: { PATH }, input, encoding: 'utf8' })
}

function kubernetesValidate(text: string) {
  const args = ['--kubernetes-version', KUBERNETES, '--strict', '-']
  return spawnSync('kubernetes-validate', args, { env: { PATH }, input: text, encoding: 'utf8' })
}

function rendered(args: readonly string[], input = ''): z.infer<typeof Resource>[] {
  return parseAllDocuments(template(args, input))
    .map((document) => document.toJS())
    .filter((document) => document !== null)
    .map((document) => Resource.parse(document))
}

function checkDeployment(name: string, { metadata, spec }: z.infer<typeof PodTemplate>): void {
  const [container] = spec.containers
  const role = metadata.labels['app.kubernetes.io/component']
  expect(container.args, name).toEqual([role])
  const settings = Object.fromEntries(container.env.map(({ name, value = '' }) => [name, value]))
  expect(strangeVariables(Object.keys(settings)), name).toEqual([])
  expect(validated(settings), name).toMatchObject({ metricsPort: 8081 })
  expect(container.ports, name).toContainEqual({ name: 'metrics', containerPort: 8081 })
  const own = role === 'ingress' ? settings : { ...settings, DRAIN_NOTICE_MS: '0' }
  expect(spec.terminationGracePeriodSeconds, name).toBeGreaterThanOrEqual(graceSecondsMin(own))
  const volumes = new Set(spec.volumes.map(({ name }) => name))
  expect(
    container.volumeMounts.filter((mount) => !volumes.has(mount.name)),
    name,
  ).toEqual([])
}

/**
 * Validates the settings. Settings of the Kafka credentials and the database URL are left out, because their files and secrets exist only in the
 * cluster.
 */
function validated(settings: Record<string, string>) {
  const isAbsent = (name: string) => /^KAFKA_(SSL|SASL)_/.test(name) || name === 'DATABASE_URL'
  return parseConfig(Object.fromEntries(Object.entries(settings).filter(([name]) => !isAbsent(name))))
}
