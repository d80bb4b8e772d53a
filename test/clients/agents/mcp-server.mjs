/** An MCP server on standard input and output with one tool, which repeats its argument: `mcp-server.mjs TOOL_NAME`. */
import { createInterface } from 'node:readline'

const [, , name] = process.argv
const inputSchema = { type: 'object', properties: { mark: { type: 'string' } }, required: ['mark'] }

const METHODS = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: 'marks', version: '1.0.0' },
  }),
  ping: () => ({}),
  'tools/list': () => ({ tools: [{ name, description: 'Repeats the mark', inputSchema }] }),
  'tools/call': ({ arguments: { mark } }) => ({ content: [{ type: 'text', text: mark }] }),
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params = {} } = JSON.parse(line)
  if (id === undefined) continue
  const made = METHODS[method]
  const answer = made ? { result: made(params) } : { error: { code: -32601, message: `No method ${method}` } }
  process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, ...answer })}\n`)
}
