/**
 * Sets up three machines by running the commands of docs/operate/three-machines.md literally. A private authority signs the TLS certificates of
 * Kafka, Postgres, S3 and the API.
 */
import { existsSync, readdirSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, inject, it } from 'vitest'
import { blocksOf } from '../support/docs/blocks.ts'
import { whyNoLocalKafka } from '../support/processes/kafka.ts'
import { type Machine, openMachines, whyNoMachines } from '../support/processes/machines.ts'
import { findPythonEnv } from '../support/processes/python.ts'
import { TEST_KEY, until } from '../support/stack.ts'

const HAPROXY = ['/usr/sbin/haproxy', '/usr/local/sbin/haproxy'].find((path) => existsSync(path))
const [version] = existsSync('/usr/lib/postgresql') ? readdirSync('/usr/lib/postgresql') : []
const POSTGRES = version && `/usr/lib/postgresql/${version}/bin`
const JARS = join(process.env.KAFKA_CACHE ?? join(homedir(), '.cache/sluice/kafka'), '4.3.1')
const moto = await findPythonEnv('moto', ['moto[s3,server]==5.2.5'])
const reasons = [
  whyNoMachines(),
  inject('kafka') ? await whyNoLocalKafka() : 'no Kafka',
  existsSync(JARS) ? undefined : `no jars in ${JARS}`,
  HAPROXY ? undefined : 'no HAProxy',
  POSTGRES ? undefined : 'no Postgres',
  moto ? undefined : 'no moto',
].filter((reason) => reason !== undefined)
if (reasons.length > 0) process.stderr.write(`The test of three machines is skipped: ${reasons.join('; ')}\n`)

const blocks = blocksOf('docs/operate/three-machines.md').map(({ code }) => code)
/** Returns the code block of the page that contains a given text. */
function block(word: string): string {
  const found = blocks.find((code) => code.includes(word))
  if (found === undefined) throw new Error(`the page has no block with ${word}`)
  return found
}
/**
 * The page shows each file as machine 1 has it. Returns the file as machine `n` has it: with the addresses and ids of that machine, but an
 * unchanged list of all machines.
 */
const of = (n: number, text: string) =>
  text
    .replace('node.id=1', `node.id=${n}`)
    .replaceAll(/(listeners=.*)/g, (line) => line.replaceAll('10.0.0.1', `10.0.0.${n}`))
    .replace(
      "printf 'PORT=8090\\nMETRICS_PORT=8081\\nHOST=%s\\n' 10.0.0.1",
      `printf 'PORT=8090\\nMETRICS_PORT=8081\\nHOST=%s\\n' 10.0.0.${n}`,
    )

/**
 * Shell functions that replace apt-get, npm and systemctl. The machines of the test have no network and no systemd; the test itself provides the
 * packages and starts the services.
 */
const SHIMS =
  'apt-get() { :; }; npm() { :; }; systemctl() { echo "$@" >> /run/systemctl; }; export -f apt-get npm systemctl'

describe.skipIf(reasons.length > 0)('docs/operate/three-machines.md', () => {
  it('has commands that start a fleet on three machines, which answers plain, streamed and durable calls over TLS', {
    timeout: 300_000,
  }, async () => {
    await using machines = await openMachines(3)
    const { all, directory } = machines
    const [first] = all as [Machine]
    // Creates the certificates with the commands of the page, and copies them to the machines.
    const certificates = `mkdir -p ${directory}/ca && cd ${directory}/ca`
    await first.run(`${certificates}\n${block('openssl req -x509')}`)
    const callers = `openssl req -newkey rsa:2048 -nodes -subj /CN=api -keyout api.key -out api.csr
      printf 'subjectAltName=DNS:sluice.example.com\\n' > api.ext
      openssl x509 -req -days 9 -in api.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile api.ext -out api.pem`
    await first.run(`${certificates}\n${callers}`)
    const hosts = '10.0.0.1 sluice.example.com'
    for (const [at, machine] of all.entries())
      await machine.run(`echo '${hosts}' >> /etc/hosts; mkdir -p /etc/sluice /etc/kafka /etc/haproxy; cd ${directory}/ca
        cp ca.pem /etc/sluice/ca.pem; cp machine-${at + 1}.pem /etc/sluice/client.pem; cp machine-${at + 1}.key /etc/sluice/client.key
        cat machine-${at + 1}.key machine-${at + 1}.pem > /etc/kafka/machine.pem; cp ca.pem /etc/kafka/ca.pem
        cat api.pem api.key > /etc/haproxy/sluice.pem`)
    // Starts Kafka on each machine, and Postgres and S3 on the first one.
    await Promise.all([...all.map((machine, at) => startKafka(machine, at + 1)), startPostgres(first), startS3(first)])
    // Installs Sluice on all machines. The ingress and the scheduler run on the first machine, the workers on the others.
    for (const [at, machine] of all.entries()) await installSluice(machine, at + 1)
    const started = [
      startUnit(first, 'ingress'),
      startUnit(first, 'scheduler'),
      ...all.slice(1).map((machine) => startUnit(machine, 'inference')),
    ].map(async (unit) => await unit)
    const units = await Promise.all(started)
    const ended = () => units.find(({ exited }) => exited())
    await until(() => ended() ?? units.every(({ output }) => output().includes('service ready')), { withinMs: 120_000 })
    expect(ended()?.output()).toBe(undefined)
    // Starts HAProxy, which terminates the TLS connections of callers.
    await first.run(`cat > /etc/haproxy/haproxy.cfg <<'EOT'\n${block('frontend api')}\nEOT`)
    first.start([HAPROXY ?? '', '-db', '-f', '/etc/haproxy/haproxy.cfg'])
    const env = { SLUICE_API_KEY: TEST_KEY, CURL_CA_BUNDLE: '/etc/sluice/ca.pem' }
    const [health = '', models = ''] = block('curl https://sluice').split('\n')
    for (const machine of all.slice(1)) expect(JSON.parse(await machine.run(`${health} -s`))).toBeTruthy()
    const third = all.at(-1) as Machine
    await until(async () => (await third.run(`${models} -s`, env).catch(() => '')).includes('echo-1'), {
      withinMs: 30_000,
    })
    const post = (more: object, content: string, flags = '') => {
      const body = JSON.stringify({ model: 'echo-1', messages: [{ role: 'user', content }], ...more })
      return third.run(
        `cat > /run/body <<'EOT'\n${body}\nEOT\ncurl -sS --fail-with-body https://sluice.example.com/v1/chat/completions -H "Authorization: Bearer $SLUICE_API_KEY" -H 'Content-Type: application/json' -d @/run/body ${flags}`,
        env,
      )
    }
    const large = 'large text '.repeat(10_000).trim()
    expect(JSON.parse(await post({}, large)).choices[0].message.content).toBe(large)
    expect(await post({ stream: true }, 'streamed')).toContain('[DONE]')
    const { id } = JSON.parse(await post({}, large, "-H 'Prefer: respond-async'"))
    const job = `curl -sS 'https://sluice.example.com/v1/jobs/${id}?wait=30' -H "Authorization: Bearer $SLUICE_API_KEY"`
    expect(JSON.parse(await third.run(job, env))).toMatchObject({ status: 'completed' })
  })
})

async function startKafka(machine: Machine, n: number): Promise<void> {
  const java = ['java', '-Xmx256m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-cp', `${JARS}/*`]
  const config = '/etc/kafka/server.properties'
  await machine.run(`cat > ${config} <<'EOT'\n${of(n, block('process.roles'))}\nEOT
    ${java.map((word) => `'${word}'`).join(' ')} kafka.tools.StorageTool format --cluster-id AAAAAAAAAAAAAAAAAAAAAA --config ${config}`)
  const kafka = machine.start([...java, 'kafka.Kafka', config])
  await until(() => kafka.exited() || isOpen(machine, 9093), { withinMs: 90_000 })
  expect(kafka.exited(), kafka.output().slice(-3_000)).toBe(false)
}

async function startPostgres(machine: Machine): Promise<void> {
  const as = 'setpriv --reuid postgres --regid postgres --clear-groups'
  const data = '/var/lib/postgresql/data'
  await machine.run(`mkdir -p /var/lib/postgresql && chown postgres /var/lib/postgresql && ${as} ${POSTGRES}/initdb -A trust -D ${data}
    cd /var/lib/postgresql && cp /etc/sluice/client.pem s.pem && cp /etc/sluice/client.key s.key && chown postgres s.* && chmod 600 s.key
    echo '${block('hostssl')}' >> ${data}/pg_hba.conf
    printf '%s\\n' "CREATE ROLE sluice LOGIN PASSWORD 'sluice'" 'CREATE DATABASE sluice OWNER sluice' > init.sql
    for line in 1 2; do sed -n $line\\p init.sql | ${as} ${POSTGRES}/postgres --single -D ${data} postgres; done`)
  const flags = { ssl: 'on', ssl_cert_file: '/var/lib/postgresql/s.pem', ssl_key_file: '/var/lib/postgresql/s.key' }
  const settings = Object.entries({ ...flags, listen_addresses: '10.0.0.1', unix_socket_directories: '' })
  const given = settings.flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const postgres = machine.start([...as.split(' '), `${POSTGRES}/postgres`, '-D', data, ...given])
  await until(() => postgres.exited() || isOpen(machine, 5432), { withinMs: 60_000 })
  expect(postgres.exited(), postgres.output()).toBe(false)
}

async function startS3(machine: Machine): Promise<void> {
  const files = ['-c', '/run/s3.pem', '-k', '/run/s3.key']
  await machine.run('cp /etc/sluice/client.pem /run/s3.pem; cp /etc/sluice/client.key /run/s3.key')
  const server = machine.start([`${moto}/moto_server`, '-H', '10.0.0.1', '-p', '9000', ...files])
  await until(() => server.exited() || isOpen(machine, 9000), { withinMs: 60_000 })
  expect(server.exited(), server.output()).toBe(false)
  const create = 'curl -sS --fail-with-body -X PUT --cacert /etc/sluice/ca.pem https://10.0.0.1:9000/sluice'
  await machine.run(`${create} -H 'Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request'`)
}

/** Runs the installation commands of the page, with the values that a reader must fill in, and writes the models of the test. */
async function installSluice(machine: Machine, n: number): Promise<void> {
  await machine.run(`${SHIMS}\n${of(n, block('useradd --system'))}`)
  const filled = {
    ...{ AWS_ACCESS_KEY_ID: 'test', AWS_SECRET_ACCESS_KEY: 'testsecret', SLUICE_API_KEY: TEST_KEY },
    BLOB_S3_ENDPOINT: 'https://10.0.0.1:9000',
  }
  const fill = Object.entries(filled).map(([name, value]) => `-e 's|^${name}=.*|${name}=${value}|'`)
  await machine.run(`sed -i -e 's/PASSWORD@/sluice@/' ${fill.join(' ')} /etc/sluice/sluice.env
    chown root:sluice /etc/sluice/client.key; chmod 640 /etc/sluice/client.key
    printf 'models:\\n  - id: echo-1\\n    engine: { type: echo }\\n    limits: { context_tokens: 100000, max_output_tokens: 90000 }\\n' > /etc/sluice/models.yaml
    mkdir -p /var/lib/sluice && chown sluice:sluice /var/lib/sluice`)
}

/** Starts an instance as its systemd unit does: the same user, environment and command. */
async function startUnit(machine: Machine, instance: string) {
  const unit = await readFile('deploy/systemd/sluice@.service', 'utf8')
  const settingOf = (name: string) =>
    new RegExp(`^${name}=(.*)$`, 'm').exec(unit)?.[1]?.replaceAll('%i', instance) ?? ''
  const environment = `set -a; export ${settingOf('Environment')}
    while IFS= read -r line; do case $line in [A-Z]*=*) export "$line";; esac; done < <(cat /etc/sluice/sluice.env /etc/sluice/${instance}.env)`
  const as = `setpriv --reuid ${settingOf('User')} --regid ${settingOf('Group')} --clear-groups --no-new-privs`
  return machine.start([
    'bash',
    '-c',
    `${environment}\ncd ${settingOf('WorkingDirectory')} && exec ${as} ${settingOf('ExecStart')}`,
  ])
}

async function isOpen(machine: Machine, port: number): Promise<boolean> {
  const probe = `exec 3<>/dev/tcp/${machine.address}/${port}`
  return await machine.run(probe).then(
    () => true,
    () => false,
  )
}
