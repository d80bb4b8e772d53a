import { SDKS } from './sdks.ts'

/** A client under test. The snippet in docs/get-started/clients.md has the same name. */
export interface Client {
  readonly name: string
  readonly language: 'python' | 'js' | 'sh'
  /** Packages to install, with versions. Clients with equal packages share one environment. */
  readonly packages: readonly string[]
  /** File in cases/. Default: its name, with the extension of its language. */
  readonly file?: string
  /**
   * Number of requests that the snippet of a load generator sends. The function `page` in the case file prints the number of successful requests,
   * and the test compares both numbers.
   */
  readonly requests?: number
  /** Calls that the client does not make, with the reason. */
  readonly without?: Readonly<Partial<Record<CallName, string>>>
}

/** Calls of a client in addition to its snippet. */
export type CallName = 'whole' | 'streamed' | 'tools'

/**
 * Packages that were published after this date are not installed, so that transitive dependencies are reproducible. Update this date
 * together with the versions.
 */
export const PACKAGES_UNTIL = '2026-11-23'

const OPENAI_PYTHON = `openai==${SDKS.openaiPython}`
const OPENAI_NODE = `openai@${SDKS.openaiNode}`
const LANGCHAIN = ['langchain==1.4.7', 'langchain-openai==1.7.3']
const LANGCHAIN_JS = ['langchain@1.5.14', '@langchain/core@1.4.0', '@langchain/openai@1.6.0', 'zod@4.6.7']
/** All clients under test, most popular first. */
export const CLIENTS: readonly Client[] = [
  { name: 'openai-python', language: 'python', packages: [OPENAI_PYTHON] },
  { name: 'openai-node', language: 'js', packages: [OPENAI_NODE] },
  { name: 'anthropic-python', language: 'python', packages: [`anthropic==${SDKS.anthropicPython}`] },
  { name: 'anthropic-node', language: 'js', packages: [`@anthropic-ai/sdk@${SDKS.anthropicNode}`] },
  { name: 'ai-sdk', language: 'js', packages: ['ai@7.0.173', '@ai-sdk/openai@4.0.118', 'zod@4.6.7'] },
  {
    name: 'openai-agents-js',
    language: 'js',
    packages: ['@openai/agents@0.20.0', OPENAI_NODE, 'zod@4.6.7'],
  },
  { name: 'openai-agents-python', language: 'python', packages: ['openai-agents==0.24.0', OPENAI_PYTHON] },
  { name: 'langchain-python', language: 'python', packages: LANGCHAIN, file: 'langchain.py' },
  { name: 'langchain-python-responses', language: 'python', packages: LANGCHAIN, file: 'langchain.py' },
  { name: 'langchain-js', language: 'js', packages: LANGCHAIN_JS, file: 'langchain.mjs' },
  { name: 'langchain-js-responses', language: 'js', packages: LANGCHAIN_JS, file: 'langchain.mjs' },
  { name: 'litellm', language: 'python', packages: ['litellm[mcp]==1.106.2'] },
  { name: 'pydantic-ai', language: 'python', packages: ['pydantic-ai-slim[openai]==2.68.0'] },
  { name: 'llama-index', language: 'python', packages: ['llama-index-llms-openai-like==0.8.1'] },
  { name: 'haystack', language: 'python', packages: ['haystack-ai==3.4.0'] },
  { name: 'smolagents', language: 'python', packages: ['smolagents[openai]==1.26.0'] },
  { name: 'dspy', language: 'python', packages: ['dspy==3.4.1'] },
  { name: 'instructor', language: 'python', packages: ['instructor==1.17.0'] },
  { name: 'mastra', language: 'js', packages: ['@mastra/core@1.71.0', '@ai-sdk/openai@4.0.118', 'zod@4.6.7'] },
  { name: 'llm', language: 'sh', packages: ['llm==0.36'] },
  {
    name: 'openai-cli',
    language: 'sh',
    packages: ['openai==1.109.1'],
    without: { tools: 'the command has no tools' },
  },
  {
    name: 'guidellm',
    language: 'sh',
    packages: ['guidellm==0.8.1', 'gguf==0.19.0'],
    requests: 5,
    without: { tools: 'the command has no tools' },
  },
  {
    name: 'aiperf',
    language: 'sh',
    packages: ['aiperf==0.13.0', 'gguf==0.19.0', 'torch==2.15.0'],
    requests: 5,
    without: { tools: 'the command has no tools' },
  },
]
