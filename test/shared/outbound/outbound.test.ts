import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import { type AddressInfo, createServer as createSocketServer, type Server } from 'node:net'
import { gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { checkUrl, checkWebhookUrl, reachOf, resolveAllowed } from '#shared/outbound/guard.ts'
import { getOutbound, type OutboundRequest, postOutbound, streamOutbound } from '#shared/outbound/outbound.ts'
import { until } from '../../support/stack.ts'

const PUBLIC = { allowPrivate: false }
const PRIVATE = { allowPrivate: true }

describe('the scope of an IP address', () => {
  it.each([
    ...['8.8.8.8', '1.1.1.1', '9.255.255.255', '11.0.0.0', '100.63.255.255', '100.128.0.0', '126.255.255.255'],
    ...['128.0.0.0', '172.15.255.255', '172.32.0.0', '192.167.255.255', '192.169.0.0', '198.17.255.255'],
    ...['198.20.0.0', '223.255.255.255', '168.63.129.15'],
    ...['2606:4700:4700::1111', '2001:4860:4860::8888', '2001:200::1', '2a00:1450:4001:82b::200e', '2003::1'],
  ])('is public for %s', (address) => {
    expect(reachOf(address)).toBe('public')
  })

  it.each([
    ...['10.0.0.0', '10.255.255.255', '127.0.0.1', '127.255.255.254', '172.16.0.0', '172.31.255.255'],
    ...['192.168.0.1', '192.168.255.255', '100.64.0.0', '100.127.255.255'],
    ...['::1', '0:0:0:0:0:0:0:1', 'fc00::1', 'fdff:ffff::1'],
  ])('is private for %s', (address) => {
    expect(reachOf(address)).toBe('private')
  })

  it.each([
    ...['0.0.0.0', '0.1.2.3', '169.254.169.254', '169.254.0.1', '100.100.100.200', '168.63.129.16', '192.0.0.192'],
    ...['192.0.2.1', '198.51.100.1', '203.0.113.1', '192.88.99.1', '198.18.0.1', '198.19.255.255'],
    ...['224.0.0.1', '239.255.255.255', '240.0.0.1', '255.255.255.255'],
    ...['::', '::ffff:127.0.0.1', '::ffff:8.8.8.8', '::ffff:7f00:1', '::ffff:0:127.0.0.1', '::127.0.0.1', '::7f00:1'],
    ...['64:ff9b::127.0.0.1', '64:ff9b::7f00:1', '64:ff9b:1::a00:1', '2002:7f00:1::', '2002:808:808::1'],
    ...['2001::1', '2001:0:4136:e378:8000:63bf:3fff:fdd2', '2001:db8::1', '2001:10::1', '2001:20::1', '3fff::1'],
    ...['fe80::1', 'fe80::1%eth0', 'febf::1', 'fec0::1', 'ff02::1', 'ff0e::1', '100::1', '5f00::1', '4000::1'],
    ...['fd00:ec2::254', 'fd20:ce::254', '', 'localhost', '127.1', '0x7f.0.0.1', '1.2.3.4.5', '::g'],
  ])('is forbidden for %s', (address) => {
    expect(reachOf(address)).toBe('forbidden')
  })
})

/** The loopback address in every notation that some URL or address parser accepts. */
const LOOPBACKS = [
  ...['127.0.0.1', '127.1', '127.0.1', '127.0.0.1.', '2130706433', '0x7f000001', '0x7F.0x0.0x0.0x1', '0x7f.1'],
  ...['017700000001', '0177.0.0.1', '0177.0.0.01', '0x7f.0.1', '00000000177.1', '127.0.0.0x1', '127.000.000.001'],
  ...['%31%32%37.0.0.1', '%31%32%37%2E%30%2E%30%2E%31', '１２７.０.０.１', '127。0。0。1', '①②⑦.⓪.⓪.①', '127.0.0.1%2e'],
  ...['[::1]', '[0:0:0:0:0:0:0:1]', '[0000::0001]', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]', '[::ffff:7f00:0001]'],
  ...[
    '[::127.0.0.1]',
    '[::7f00:1]',
    '[64:ff9b::127.0.0.1]',
    '[64:ff9b::7f00:1]',
    '[2002:7f00:1::]',
    '[0::ffff:127.0.0.1]',
  ],
  ...[
    'localhost',
    'LOCALHOST',
    'localhost.',
    'LocalHost..',
    'a.localhost',
    'a.b.localhost.',
    'ｌocalhost',
    'loc%61lhost',
  ],
]

const INSIDE = [
  ...['10.0.0.1', '0xa.1', '167772161', '012.0.0.1', '172.16.0.1', '192.168.1.1', '3232235777', '0300.0250.1.1'],
  ...[
    '169.254.169.254',
    '2852039166',
    '0xa9fea9fe',
    '0251.0376.0251.0376',
    '169.254.43518',
    '[::ffff:169.254.169.254]',
  ],
  ...[
    '100.64.0.1',
    '100.100.100.200',
    '168.63.129.16',
    '192.0.0.192',
    '0.0.0.0',
    '0',
    '0x0',
    '[::]',
    '255.255.255.255',
  ],
  ...[
    '224.0.0.1',
    '240.0.0.1',
    '198.18.0.1',
    '[fe80::1]',
    '[fc00::1]',
    '[fd00:ec2::254]',
    '[fd20:ce::254]',
    '[ff02::1]',
  ],
  ...['[2001::1]', '[2001:db8::1]', '[2002:a00:1::1]', '[64:ff9b:1::a00:1]', '[fec0::1]', '[::ffff:0:a00:1]'],
  ...[
    'intranet',
    'kubernetes',
    'printer.local',
    'metadata.google.internal',
    'nas.home.arpa',
    'METADATA.GOOGLE.INTERNAL.',
  ],
]

describe('the URL check for outbound requests', () => {
  it.each([...LOOPBACKS, ...INSIDE])('refuses the internal host %s', (host) => {
    expect(() => checkUrl(`https://${host}/hook`, PUBLIC)).toThrow(
      expect.objectContaining({ name: 'ServiceError', code: 'invalid_value' }),
    )
  })

  it.each([
    ['the scheme http', 'http://example.com/'],
    ['the scheme ftp', 'ftp://example.com/'],
    ['the scheme file', 'file:///etc/passwd'],
    ['the scheme gopher', 'gopher://example.com/'],
    ['the scheme javascript', 'javascript:alert(1)'],
    ['the scheme data', 'data:text/plain,hello'],
    ['the scheme wss', 'wss://example.com/'],
    ['a URL without a scheme', 'example.com/hook'],
    ['a scheme-relative URL', '//example.com/hook'],
    ['an empty text', ''],
    ['a URL without a host', 'https://'],
    ['an IPv6 address with a zone', 'https://[fe80::1%25eth0]/'],
    ['a malformed IP address', 'https://1.2.3.4.5.6/'],
    ['an IP address out of range', 'https://256.256.256.256/'],
    ['a user name', 'https://user@example.com/'],
    ['a password', 'https://user:secret@example.com/'],
    ['an IP address after a host name as user name', 'https://example.com@127.0.0.1/'],
    ['an IP address before a backslash', 'https://127.0.0.1\\@example.com/'],
    ['backslashes', 'https:\\\\127.0.0.1/'],
    ['an IP address with a line feed', 'https://127.0\n.0.1/'],
    ['an IP address before a fragment', 'https://127.0.0.1#@example.com/'],
    ['the port of SSH', 'https://example.com:22/'],
    ['the port of SMTP', 'https://example.com:25/'],
    ['port 0', 'https://example.com:0/'],
    ['port 65536', 'https://example.com:65536/'],
    ['a URL above 2,048 characters', `https://example.com/${'a'.repeat(2_048)}`],
  ])('refuses %s', (_what, url) => {
    expect(() => checkUrl(url, PUBLIC)).toThrow(expect.objectContaining({ code: 'invalid_value' }))
  })

  it.each([
    ...['https://example.com', 'https://example.com:443/', 'https://example.com:8443/hook?a=b#c', 'https://8.8.8.8/'],
    ...['https://example.com:80/', 'https://example.com:1024/', 'https://[2606:4700:4700::1111]:9000/'],
    ...[
      'https://xn--bcher-kva.example/',
      'https://bücher.example/',
      'HTTPS://EXAMPLE.COM.',
      'https://localhost.example.com',
    ],
    ...['https://10.0.0.1.nip.io/', 'https://127.0.0.1.example.com/'],
  ])('accepts %s', (url) => {
    expect(checkUrl(url, PUBLIC).protocol).toBe('https:')
  })

  it.each([
    ...[
      'http://localhost:8080/',
      'http://127.0.0.1:1234/',
      'https://[::1]:1234/',
      'http://10.1.2.3/',
      'http://receiver:9000/',
    ],
  ])('accepts %s if private addresses are allowed', (url) => {
    expect(checkUrl(url, PRIVATE).href).toBe(url)
  })

  it.each([
    ...['http://169.254.169.254/', 'http://2852039166/', 'http://[fd00:ec2::254]/', 'http://100.100.100.200/'],
    ...[
      'http://0.0.0.0/',
      'http://[::ffff:127.0.0.1]/',
      'http://user@localhost/',
      'http://localhost:25/',
      'ftp://localhost/',
    ],
  ])('refuses %s even if private addresses are allowed', (url) => {
    expect(() => checkUrl(url, PRIVATE)).toThrow(expect.objectContaining({ code: 'invalid_value' }))
  })

  it('reports a refused webhook URL with the field webhook.url', () => {
    expect(() => checkWebhookUrl('https://localhost/', PUBLIC)).toThrow(
      expect.objectContaining({ code: 'invalid_value', param: 'webhook.url' }),
    )
    expect(checkWebhookUrl('https://example.com/', PUBLIC)).toBeUndefined()
  })
})

describe('the name resolution for outbound requests', () => {
  const answering =
    (...addresses: string[]) =>
    async () =>
      addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))

  it.each([
    ...['127.0.0.1', '10.0.0.1', '169.254.169.254', '100.64.0.1', '0.0.0.0', '::1', '::ffff:10.0.0.1', 'fe80::1%eth0'],
    ...['fd00:ec2::254', '64:ff9b::a00:1', '2002:a00:1::'],
  ])('refuses a name that resolves to %s', async (address) => {
    const resolving = resolveAllowed('a.example', PUBLIC, answering(address))
    await expect(resolving).rejects.toMatchObject({ code: 'invalid_value', message: 'The host has no public address.' })
  })

  it('returns the same error for unknown names and private addresses, so that internal names are not revealed', async () => {
    const unknown = () => Promise.reject(Object.assign(new Error('getaddrinfo ENOTFOUND'), { code: 'ENOTFOUND' }))
    const resolving = resolveAllowed('a.example', PUBLIC, unknown)
    await expect(resolving).rejects.toMatchObject({ code: 'invalid_value', message: 'The host has no public address.' })
  })

  it('returns only the public addresses of a name with several addresses', async () => {
    const resolve = answering('10.0.0.1', '8.8.8.8', '::1', '2606:4700::1111', '169.254.169.254')
    const allowed = await resolveAllowed('a.example', PUBLIC, resolve)
    expect(allowed.map(({ address }) => address)).toEqual(['8.8.8.8', '2606:4700::1111'])
  })

  it('does not resolve a literal IP address', async () => {
    const resolve = () => Promise.reject(new Error('resolved'))
    expect(await resolveAllowed('8.8.8.8', PUBLIC, resolve)).toEqual([{ address: '8.8.8.8', family: 4 }])
  })
})

interface Receiver extends AsyncDisposable {
  readonly port: number
}

async function receive(server: Server, host = '127.0.0.1'): Promise<Receiver> {
  server.listen(0, host)
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    async [Symbol.asyncDispose]() {
      server.close()
      if ('closeAllConnections' in server) (server.closeAllConnections as () => void)()
      await once(server, 'close')
    },
  }
}

function receiveHttp(onRequest: RequestListener): Promise<Receiver> {
  return receive(createServer(onRequest))
}

function post(url: string, changes: Partial<OutboundRequest> = {}) {
  const signal = new AbortController().signal
  const headers = { 'content-type': 'text/plain' }
  return postOutbound(url, {
    headers,
    body: 'hello',
    policy: PRIVATE,
    timeoutMs: 10_000,
    bytesMax: 1_000,
    signal,
    ...changes,
  })
}

describe('an outbound request', () => {
  it('connects to the address that was checked, and sends the original host name', async () => {
    await using receiver = await receiveHttp((req, res) => res.setHeader('x-host', req.headers.host ?? '').end())
    let asked = 0
    const resolve = async () => {
      asked++
      // Simulates DNS rebinding: a second resolution of the name returns another address. The name does not exist in the system's resolver, so
      // only this function is used.
      return [{ address: asked === 1 ? '127.0.0.1' : '127.0.0.2', family: 4 }]
    }
    const answer = await post(`http://rebinding.example:${receiver.port}/`, { resolve })
    expect(answer).toMatchObject({ status: 200, headers: { 'x-host': `rebinding.example:${receiver.port}` } })
    expect(asked).toBe(1)
  })

  it('is refused if a name that resolved to a public address now resolves to a private one', async () => {
    let requests = 0
    await using receiver = await receiveHttp((_req, res) => {
      requests++
      res.end()
    })
    const answers = [[{ address: '8.8.8.8', family: 4 }], [{ address: '127.0.0.1', family: 4 }]]
    const resolve = async () => answers.shift() ?? []
    await resolveAllowed('rebinding.example', PUBLIC, resolve)
    const posting = post(`https://rebinding.example:${receiver.port}/`, { policy: PUBLIC, resolve })
    await expect(posting).rejects.toMatchObject({ code: 'invalid_value' })
    expect(requests).toBe(0)
  })

  it('connects to a literal IPv6 address', async () => {
    await using receiver = await receive(
      createServer((_req, res) => void res.end()),
      '::1',
    )
    expect(await post(`http://[::1]:${receiver.port}/`)).toMatchObject({ status: 200 })
  })

  it('sends the host name, not the address, in the TLS handshake', async () => {
    const hello = Promise.withResolvers<Buffer>()
    const server = createSocketServer((socket) => {
      socket
        .on('error', () => {})
        .once('data', (data) => {
          hello.resolve(data)
          socket.destroy()
        })
    })
    await using receiver = await receive(server)
    const resolve = async () => [{ address: '127.0.0.1', family: 4 }]
    const posting = post(`https://hook.example:${receiver.port}/`, { resolve })
    await expect(posting).rejects.toMatchObject({ code: 'upstream_error' })
    expect((await hello.promise).includes('hook.example')).toBe(true)
  })

  it('returns a redirect as a response without following it', async () => {
    const paths: string[] = []
    await using receiver = await receiveHttp((req, res) => {
      paths.push(req.url ?? '')
      res.writeHead(307, { location: '/elsewhere' }).end()
    })
    expect(await post(`http://127.0.0.1:${receiver.port}/hook`)).toMatchObject({ status: 307 })
    expect(paths).toEqual(['/hook'])
  })

  /** Starts a server that answers with exactly these bytes. */
  const receiveRaw = (answer: string) =>
    receive(createSocketServer((socket) => void socket.on('error', () => {}).once('data', () => socket.end(answer))))

  it.each([
    ['100 Continue', ''],
    ['102 Processing', 'x-progress: 1\r\n'],
    ['103 Early Hints', 'link: </a.css>; rel=preload\r\n'],
    ['199 Anything', ''],
  ])('skips interim responses with status %s before the final response', async (status, lines) => {
    const interim = `HTTP/1.1 ${status}\r\n${lines}\r\n`.repeat(3)
    await using receiver = await receiveRaw(`${interim}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok`)
    const url = `http://127.0.0.1:${receiver.port}/`
    const call = {
      headers: {},
      policy: PRIVATE,
      timeoutMs: 5_000,
      bytesMax: 1_000,
      signal: new AbortController().signal,
    }
    expect(await post(url)).toMatchObject({ status: 200 })
    expect(await getOutbound(url, call)).toMatchObject({ status: 200, body: Buffer.from('ok') })
    expect(await (await streamOutbound(url, { ...call, method: 'POST', body: 'hello' })).text()).toBe('ok')
  })

  it.each([
    'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n',
    'HTTP/1.1 100 Continue\r\n\r\n',
    'not HTTP\r\n\r\n',
    '',
  ])('fails with upstream_error if the host sends no final response: %j', async (answer) => {
    await using receiver = await receiveRaw(answer)
    await expect(post(`http://127.0.0.1:${receiver.port}/`)).rejects.toMatchObject({ code: 'upstream_error' })
  })

  it('stops reading an endless response at its maximum size', async () => {
    const cut = Promise.withResolvers<void>()
    await using receiver = await receiveHttp((_req, res) => {
      const timer = setInterval(() => res.write('x'.repeat(500)), 1)
      res.once('close', () => {
        clearInterval(timer)
        cut.resolve()
      })
    })
    expect(await post(`http://127.0.0.1:${receiver.port}/`)).toMatchObject({ status: 200 })
    await cut.promise
  })

  it.each([
    ['plain', 'identity', (text: string) => text],
    ['compressed', 'gzip', (text: string) => gzipSync(text)],
  ])('stops reading a %s page after the bytes that the caller uses', async (_, encoding, pack) => {
    const large = pack('x'.repeat(4_000_000))
    await using receiver = await receiveHttp((_req, res) => res.setHeader('content-encoding', encoding).end(large))
    const { body } = await getOutbound(`http://127.0.0.1:${receiver.port}/`, {
      ...{ headers: {}, policy: PRIVATE, timeoutMs: 5_000, bytesMax: 5_000_000 },
      usedBytesOf: ({ status }) => (status === 200 ? 1_000 : 0),
      signal: new AbortController().signal,
    })
    expect(body.length).toBeGreaterThan(1_000)
    expect(body.length).toBeLessThan(200_000)
  })

  it('fails with upstream_timeout if the host accepts the connection and never responds', async () => {
    await using receiver = await receiveHttp(() => {})
    const posting = post(`http://127.0.0.1:${receiver.port}/`, { timeoutMs: 50 })
    await expect(posting).rejects.toMatchObject({ code: 'upstream_timeout' })
  })

  it('fails with upstream_timeout if the name server does not respond', async () => {
    const posting = post('http://silent.example/', { timeoutMs: 50, resolve: () => new Promise(() => {}) })
    await expect(posting).rejects.toMatchObject({ code: 'upstream_timeout' })
  })

  it('ends when the signal of its caller is aborted', async () => {
    let requests = 0
    await using receiver = await receiveHttp(() => {
      requests++
    })
    const caller = new AbortController()
    const posting = post(`http://127.0.0.1:${receiver.port}/`, { signal: caller.signal })
    const ended = expect(posting).rejects.toThrow('enough')
    await until(() => requests === 1)
    caller.abort(new Error('enough'))
    await ended
  })

  it('reports the system error code if the connection fails', async () => {
    const receiver = await receiveHttp((_req, res) => void res.end())
    await receiver[Symbol.asyncDispose]()
    const posting = post(`http://127.0.0.1:${receiver.port}/`)
    await expect(posting).rejects.toMatchObject({
      code: 'upstream_error',
      message: 'The connection to the host failed (ECONNREFUSED).',
    })
  })
})
