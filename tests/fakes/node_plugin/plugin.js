// A device plugin for tests: node plugin.js DIRECTORY RESOURCE ENDPOINT
//
// Reads a JSON object a line: {"devices": [{"id", "nodes", "healthy"}]} sends a list. Prints one a
// line: {"registered": true} once it did, {"error": TEXT}, and {"called": METHOD, "ids": [...]}.
// Ends with its standard input.
import {createInterface} from 'node:readline';
import {dirname, join} from 'node:path';
import {fileURLToPath} from 'node:url';
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const [directory, resource, endpoint] = process.argv.slice(2);
const file = join(dirname(fileURLToPath(import.meta.url)), 'device_plugin.proto');
const api = grpc.loadPackageDefinition(loader.loadSync(file, {keepCase: true, defaults: true, arrays: true})).v1beta1;

const print = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
const streams = new Set();
let list = {devices: []};

const methods = {
  GetDevicePluginOptions(_call, answer) {
    print({called: 'GetDevicePluginOptions', ids: []});
    answer(null, {pre_start_required: true, get_preferred_allocation_available: true});
  },
  ListAndWatch(call) {
    print({called: 'ListAndWatch', ids: []});
    streams.add(call);
    call.on('cancelled', () => streams.delete(call));
    call.write(list);
  },
  GetPreferredAllocation(call, answer) {
    const [asked] = call.request.container_requests;
    const required = asked.must_include_deviceIDs;
    print({called: 'GetPreferredAllocation', ids: asked.available_deviceIDs});
    const others = asked.available_deviceIDs.filter((id) => !required.includes(id)).sort().reverse();
    const deviceIDs = [...required, ...others].slice(0, asked.allocation_size);
    answer(null, {container_responses: [{deviceIDs}]});
  },
  Allocate(call, answer) {
    const [{devices_ids: ids}] = call.request.container_requests;
    print({called: 'Allocate', ids});
    if (ids.includes('broken')) {
      answer({code: grpc.status.INTERNAL, details: 'the device is broken'});
      return;
    }
    answer(null, {
      container_responses: [{
        envs: {DEVICES: ids.join(',')},
        mounts: [{container_path: '/opt/driver', host_path: '/usr/lib/driver', read_only: true}],
        devices: ids.map((id) => (
          {container_path: `/dev/${id}`, host_path: `/dev/${id}`, permissions: 'rw'})),
        annotations: {'example.com/devices': ids.join(',')},
        cdi_devices: ids.map((id) => ({name: `example.com/gpu=${id}`})),
      }],
    });
  },
  PreStartContainer(call, answer) {
    print({called: 'PreStartContainer', ids: call.request.devices_ids});
    answer(null, {});
  },
};

const server = new grpc.Server();
server.addService(api.DevicePlugin.service, methods);
server.bindAsync(`unix:${join(directory, endpoint)}`, grpc.ServerCredentials.createInsecure(), (failed) => {
  if (failed) {
    print({error: failed.message});
    return;
  }
  const insecure = grpc.credentials.createInsecure();
  const kubelet = new api.Registration(`unix:${join(directory, 'kubelet.sock')}`, insecure);
  const request = {version: 'v1beta1', endpoint, resource_name: resource};
  kubelet.Register(request, {deadline: Date.now() + 30_000}, (error) => {
    print(error ? {error: error.message} : {registered: true});
    kubelet.close();
  });
});

const lines = createInterface({input: process.stdin});
lines.on('line', (line) => {
  const devices = JSON.parse(line).devices.map(({id, nodes, healthy}) => ({
    ID: id,
    health: healthy ? 'Healthy' : 'Unhealthy',
    topology: {nodes: nodes.map((node) => ({ID: node}))},
  }));
  list = {devices};
  streams.forEach((stream) => stream.write(list));
});
lines.on('close', () => {
  streams.forEach((stream) => stream.end());
  server.forceShutdown();
  process.exit(0);
});
