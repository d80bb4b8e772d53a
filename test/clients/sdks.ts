/** The official SDKs, each with the version that its snippet of docs/get-started/clients.md and its own tests run with. */
export const SDKS = {
  openaiPython: '3.54.0',
  anthropicPython: '2.12.0',
  openaiNode: '7.55.0',
  anthropicNode: '1.11.0',
} as const
